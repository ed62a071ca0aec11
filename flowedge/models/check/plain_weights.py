"""Stored integer weights in float32, computed without the code that repacks them, and models made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.models.check.split_experts import layers_as_stored, stored_name
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.block_repacking import is_held_as_stored, stored_linear
from flowedge.models.quant.repacking import build_repacked
from flowedge.models.quant.stored_layouts import AWQ, GPTQ, CompressedTensors

Values = npt.NDArray[Any]

_AWQ_FEATURES = (0, 2, 4, 6, 1, 3, 5, 7)  # the output feature of each value in a word
_TRIAL_ROWS = 4
_TRIAL_ERROR = 0.03  # of a layer's output, as root mean squares; rounding rows to 8 bits explains 0.007


def load_plain_model(checkpoint: Checkpoint, dtype: torch.dtype, attention: str) -> Any:
    """The causal LM of a checkpoint with integer weights, in floating point and on the CPU.

    Args:
        dtype: the dtype of all weights.
        attention: transformers' name of the attention function.
    """
    causal_lm, config = checkpoint.family.causal_lm, checkpoint.transformers_config
    with torch.device("meta"):
        names = list(causal_lm(config).state_dict())
    weights = {}
    for name in names:
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        own = checkpoint.family.module_name(name)
        if ".experts." in own and not checkpoint.has(own):
            weights[name] = _stacked_experts(checkpoint, own).to(dtype)
        elif own.endswith(".gate_up_proj.weight") and not checkpoint.architecture.fused:
            parts = (own.replace("gate_up_proj", each) for each in ("gate_proj", "up_proj"))
            weights[name] = torch.cat([_weight(checkpoint, each) for each in parts]).to(dtype)
        else:
            weights[name] = _weight(checkpoint, own).to(dtype)
    return causal_lm.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, attn_implementation=attention
    )


def quantise_as_stored(checkpoint: Checkpoint, model: Any) -> None:
    """Replace the linear layers of a model in floating point by the layers that a block has.

    Raises:
        CheckpointError: when a layer does not multiply with the weight that it replaces.
    """
    layers = layers_as_stored(checkpoint, model)
    for path, linear in list(layers.named_modules()):
        if isinstance(linear, nn.Linear):
            weight = stored_name(checkpoint, path)
            built = _built(checkpoint, weight, linear)
            if built is not None:
                _check_product(f"{checkpoint.place}: {weight}", built, linear)
                layers.set_submodule(path, built)


def _built(checkpoint: Checkpoint, weight: str, linear: nn.Linear) -> nn.Module | None:
    """The layer of a block in place of one in floating point; None where a block has that as well."""
    stored, plain = checkpoint.integer_format, linear.weight
    if stored is None:
        held = is_held_as_stored(checkpoint, weight, plain.device)
        return stored_linear(checkpoint, weight, linear) if held else None
    if not checkpoint.is_quantised(weight):
        return None
    read = stored.read(weight.removesuffix("weight"), checkpoint)
    return build_repacked(read, linear, plain.dtype, plain.device)


def plain_weight(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The weight `name`, which is stored as integers, in float32 [out_features, in_features]."""
    layer = name.removesuffix("weight")

    def read(part: str) -> Values:
        tensor = checkpoint.raw(layer + part)
        values: Values = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return values

    stored = checkpoint.integer_format
    if isinstance(stored, GPTQ):
        group_of = read("g_idx") if checkpoint.has(f"{layer}g_idx") else None
        levels = _values(np.ascontiguousarray(read("qweight").T), stored.bits)
        zeros = _values(read("qzeros"), stored.bits)[:, : len(levels)].T
        zeros = (zeros + stored.zero_offset) % 2**stored.bits
        scales = read("scales").T
    elif isinstance(stored, AWQ):
        group_of = None
        levels, zeros = (_in_awq_order(_values(read(part), 4)).T for part in ("qweight", "qzeros"))
        scales = read("scales").T
    elif isinstance(stored, CompressedTensors):
        group_of = read("weight_g_idx") if checkpoint.has(f"{layer}weight_g_idx") else None
        scales = read("weight_scale")
        middle = 2 ** (stored.bits - 1)
        if stored.packed:
            levels = _values(read("weight_packed"), stored.bits)[:, : int(read("weight_shape")[1])]
        else:
            levels = read("weight").astype(np.int64) + middle
        zeros = np.full(scales.shape, middle)
        if not stored.symmetric:
            found = read("weight_zero_point")
            packed = found.dtype == np.int32
            zeros = _values(np.ascontiguousarray(found.T), stored.bits).T if packed else found + middle
            zeros = zeros[: len(levels)]
    else:
        raise CheckpointError(f"{name} is not stored as integers")
    if group_of is None or bool((group_of == -1).all()):
        size = levels.shape[1] if stored.group == -1 else stored.group
        group_of = np.arange(levels.shape[1]) // size
    plain = (levels - zeros[:, group_of]) * scales[:, group_of]
    return torch.from_numpy(plain.astype(np.float32))


def _has_weight(checkpoint: Checkpoint, name: str) -> bool:
    return checkpoint.has(name) or checkpoint.is_quantised(name)


def _weight(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    if name.endswith("weight") and checkpoint.is_quantised(name):
        return plain_weight(checkpoint, name)
    return checkpoint.tensor(name)


def _stacked_experts(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The weights of all experts, as transformers stacks them: [experts, rows, columns]."""
    prefix, _, part = name.rpartition(".")
    projections = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    experts: list[torch.Tensor] = []
    while any(_has_weight(checkpoint, f"{prefix}.{len(experts)}.{one}.weight") for one in projections):
        rows = [_weight(checkpoint, f"{prefix}.{len(experts)}.{one}.weight") for one in projections]
        experts.append(torch.cat(rows))
    if not experts:
        raise CheckpointError(f"{checkpoint.directory}: tensor {name} is missing")
    return torch.stack(experts)


def _values(words: Values, bits: int) -> Values:
    """The unsigned integers that are packed in the last axis of int32 words, as int64."""
    octets = np.ascontiguousarray(words).astype("<i4").view(np.uint8).astype(np.int64)
    if bits == 8:
        return octets
    return np.stack((octets % 16, octets // 16), axis=-1).reshape(*octets.shape[:-1], -1)


def _in_awq_order(values: Values) -> Values:
    words = values.reshape(len(values), -1, 8)
    ordered = np.empty_like(words)
    ordered[..., _AWQ_FEATURES] = words
    return ordered.reshape(values.shape)


@torch.inference_mode()
def _check_product(name: str, built: nn.Module, plain: nn.Linear) -> None:
    """Compare the outputs of a quantised layer for random rows with those of the plain layer."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_TRIAL_ROWS, plain.in_features, generator=generator).to(plain.weight.dtype)
    rows = rows.to(plain.weight.device)
    got, expected = built(rows).float(), plain(rows).float()
    error = float(((got - expected).square().mean() / expected.square().mean().clamp(min=1e-24)).sqrt())
    if not error < _TRIAL_ERROR:
        raise CheckpointError(
            f"{name}: the quantised product differs from the product with the plain weight by {error:.3f} of "
            "its size; the repacked weight is wrong"
        )
