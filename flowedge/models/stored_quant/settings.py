"""The settings of a quantiser in config.json, and which of them are supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.stored_quant.awq import AWQ
from flowedge.models.stored_quant.compressed_tensors import CompressedTensors
from flowedge.models.stored_quant.gptq import GPTQ
from flowedge.models.stored_quant.integer_weight import IntegerFormat

Settings = dict[str, Any]

_CT_FORMATS = ("pack-quantized", "int-quantized")
_CT_STRATEGIES = ("channel", "group")
_PLAIN = "give the original checkpoint, or a checkpoint in a supported format"


def integer_format(settings: Settings) -> IntegerFormat | None:
    """The format that a `quantization_config` describes; None for methods that do not store integers.

    Raises:
        CheckpointError: when the method stores integers and a setting of it is not supported.
    """
    read = _METHODS.get(str(settings.get("quant_method")))
    return None if read is None else read(settings)


def _gptq(settings: Settings) -> GPTQ:
    bits = _int(settings, "bits", "GPTQ")
    _require(bits in (4, 8), "GPTQ", f"weights of {bits} bits", "4 or 8 bits")
    layout = settings.get("checkpoint_format", "gptq")
    _require(layout in ("gptq", "gptq_v2"), "GPTQ", f"checkpoint_format {layout!r}", "gptq or gptq_v2")
    _require(not settings.get("dynamic"), "GPTQ", "settings of single modules (dynamic)", "one for all")
    _require(not settings.get("lm_head"), "GPTQ", "a quantised LM head", "an LM head in floating point")
    pack = settings.get("pack_dtype", "int32")
    _require(pack == "int32", "GPTQ", f"pack_dtype {pack!r}", "int32")
    group = _group(settings, "group_size", "GPTQ")
    return GPTQ(bits, group, bool(settings.get("desc_act")), 1 if layout == "gptq" else 0)


def _awq(settings: Settings) -> AWQ:
    bits = _int(settings, "bits" if "bits" in settings else "w_bit", "AWQ")
    _require(bits == 4, "AWQ", f"weights of {bits} bits", "4 bits")
    version = str(settings.get("version", "gemm")).lower()
    _require(version == "gemm", "AWQ", f"the layout of version {version!r}", "version gemm")
    _require(bool(settings.get("zero_point", True)), "AWQ", "weights without zero points", "zero_point: true")
    return AWQ(_group(settings, "group_size" if "group_size" in settings else "q_group_size", "AWQ"))


def _compressed_tensors(settings: Settings) -> CompressedTensors:
    method = "compressed-tensors"
    layout = settings.get("format")
    _require(layout in _CT_FORMATS, method, f"format {layout!r}", " or ".join(_CT_FORMATS))
    sparsity = settings.get("sparsity_config") or {}
    sparse = sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity
    _require(sparse == "dense", method, f"sparse weights ({sparse!r})", "dense weights")
    _require(not settings.get("kv_cache_scheme"), method, "a quantised KV cache", "no kv_cache_scheme")
    _require(not settings.get("transform_config"), method, "transforms of activations", "no transform_config")
    weights = _one_scheme(settings)
    bits, kind = _int(weights, "num_bits", method), weights.get("type", "int")
    _require(kind == "int", method, f"weights of type {kind!r}", "int")
    _require(bits in (4, 8), method, f"weights of {bits} bits", "4 or 8 bits")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    _require(
        strategy in _CT_STRATEGIES,
        method,
        f"scales by {strategy!r}",
        f"scales by {' or '.join(_CT_STRATEGIES)}",
    )
    _require(not weights.get("dynamic"), method, "weights that are quantised at run time", "stored weights")
    return CompressedTensors(
        bits,
        packed=layout == "pack-quantized",
        group=_group(weights, "group_size", method) if strategy == "group" else -1,
        symmetric=bool(weights.get("symmetric", True)),
        reordered=str(weights.get("actorder")).lower() in ("group", "true"),
    )


def _one_scheme(settings: Settings) -> Settings:
    """The settings of weights, which have to be the same in all of the config's groups of layers."""
    method = "compressed-tensors"
    groups = settings.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    valid = all(isinstance(scheme, dict) and isinstance(scheme.get("weights"), dict) for scheme in schemes)
    _require(bool(schemes) and valid, method, "no scheme of weights", "config_groups with weights")
    for scheme in schemes:
        for part in ("input_activations", "output_activations"):
            _require(not scheme.get(part), method, f"quantised activations ({part})", "weights only")
        same = scheme["weights"] == schemes[0]["weights"]
        _require(same, method, "several schemes of weights", "one scheme for all layers")
    weights: Settings = schemes[0]["weights"]
    return weights


_METHODS: dict[str, Callable[[Settings], IntegerFormat]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
}
METHODS = tuple(_METHODS)


def _require(condition: bool, method: str, found: str, supported: str) -> None:
    if not condition:
        raise CheckpointError(
            f"the checkpoint is quantised by {method} with {found}, which is not supported (supported: "
            f"{supported}); {_PLAIN}"
        )


def _int(settings: Settings, name: str, method: str) -> int:
    value = settings.get(name)
    if type(value) is not int:
        raise CheckpointError(f"the checkpoint is quantised by {method}, and its setting {name} is {value!r}")
    return value


def _group(settings: Settings, name: str, method: str) -> int:
    """The group size; -1 for one scale a row."""
    group = _int(settings, name, method)
    _require(
        group == -1 or (group > 0 and group % 32 == 0),
        method,
        f"groups of {group} weights",
        "-1 or a multiple of 32",
    )
    return group
