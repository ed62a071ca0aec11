"""The rotary parameters of a GGUF model, as transformers' configs have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.metadata import Metadata

_DEFAULT_BASE = 10000.0
# The values of all published models with this scaling; a file stores the resulting factors only.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_TOLERANCE = 1e-4  # of a factor, which is stored in float32


def rope_parameters(metadata: Metadata, factors: Sequence[float] | None, head_size: int) -> dict[str, Any]:
    """The `rope_parameters` of a model whose positions are scaled by one rule.

    Args:
        factors: the divisors of the frequencies that the file stores for texts of any length, if it does.
        head_size: the number of rotated values of a head.

    Raises:
        CheckpointError: when the scaling is not supported or its values are impossible.
    """
    base = metadata.number(".rope.freq_base", _DEFAULT_BASE)
    if factors is not None:
        return {"rope_theta": base} | _factored(metadata, factors, base, head_size)
    linear = _linear_factor(metadata)
    kind = metadata.text(".rope.scaling.type", "none" if linear is None else "linear")
    if kind == "none":
        return {"rope_theta": base, "rope_type": "default"}
    if kind == "linear":
        factor = metadata.number(".rope.scaling.factor", linear)
        return {"rope_theta": base, "rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_theta": base} | _yarn(metadata)
    raise CheckpointError(
        f"RoPE scaling {kind!r} is not supported in GGUF files; supported scalings: linear, yarn, and stored "
        "factors"
    )


def longrope_parameters(
    metadata: Metadata, short: Sequence[float], long: Sequence[float]
) -> tuple[dict[str, Any], int]:
    """The `rope_parameters` of a model with factors for short and for long texts, and its original length."""
    original = metadata.count(".rope.scaling.original_context_length")
    parameters: dict[str, Any] = {
        "rope_theta": metadata.number(".rope.freq_base", _DEFAULT_BASE),
        "rope_type": "longrope",
        "short_factor": list(short),
        "long_factor": list(long),
        "original_max_position_embeddings": original,
    }
    if metadata.has(".rope.scaling.attn_factor"):
        parameters["attention_factor"] = metadata.number(".rope.scaling.attn_factor")
    return parameters, original


def _linear_factor(metadata: Metadata) -> float | None:
    """The factor of a linear scaling, which older files store without its type; None where positions stay."""
    for key in (".rope.scaling.factor", ".rope.scale_linear"):
        if metadata.values.get(metadata.architecture + key, 0) not in (0, 1):
            return metadata.number(key)
    return None


def _yarn(metadata: Metadata) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": metadata.number(".rope.scaling.factor"),
        "original_max_position_embeddings": metadata.count(".rope.scaling.original_context_length"),
    }
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if metadata.has(f".rope.scaling.{key}"):
            parameters[name] = metadata.number(f".rope.scaling.{key}")
    if metadata.values.get(metadata.architecture + ".rope.scaling.yarn_log_multiplier"):
        parameters |= {"mscale": 1.0, "mscale_all_dim": 1.0}  # their quotient is the factor of the rotation
    return parameters


def _factored(metadata: Metadata, factors: Sequence[float], base: float, head_size: int) -> dict[str, Any]:
    """Llama 3's scaling if the factors are those of its rule; otherwise the factors themselves."""
    frequencies = [base ** (-2 * index / head_size) for index in range(head_size // 2)]
    if len(factors) != len(frequencies) or not all(0 < factor < math.inf for factor in factors):
        raise CheckpointError(f"rope_freqs.weight is not {len(frequencies)} positive factors")
    rule = {"rope_type": "llama3", "factor": float(max(factors)), **_LLAMA3}
    expected = [_llama3_factor(2 * math.pi / frequency, rule) for frequency in frequencies]
    if all(math.isclose(*pair, rel_tol=_TOLERANCE) for pair in zip(factors, expected, strict=True)):
        return rule
    return {
        "rope_type": "longrope",
        "short_factor": list(factors),
        "long_factor": list(factors),
        "original_max_position_embeddings": metadata.count(".context_length"),
        "attention_factor": 1.0,
    }


def _llama3_factor(wavelength: float, rule: dict[str, Any]) -> float:
    """The divisor of the frequency with a wavelength in positions, by the rule of Llama 3.1."""
    original, low, high = (
        rule["original_max_position_embeddings"],
        rule["low_freq_factor"],
        rule["high_freq_factor"],
    )
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return float(rule["factor"])
    smooth = (original / wavelength - low) / (high - low)
    return float(1 / ((1 - smooth) / rule["factor"] + smooth))
