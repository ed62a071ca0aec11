"""Checkpoints of quantised integers in the published layouts of GPTQ, AWQ and compressed-tensors.

The quantiser rounds to the nearest level. It is written without FlowEdge's code, and returns the weights
that the stored integers mean.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

Array = npt.NDArray[Any]
Stored = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Quantised:
    """A weight of (levels - zeros) * scales; `group_of` is the group of each input feature."""

    levels: Array  # [out, in], from 0 on
    zeros: Array  # [out, groups]
    scales: torch.Tensor  # [out, groups]
    group_of: Array  # [in]
    bits: int

    @property
    def plain(self) -> torch.Tensor:
        scales = self.scales.float().numpy()
        values = (self.levels - self.zeros[:, self.group_of]) * scales[:, self.group_of]
        return torch.from_numpy(values.astype(np.float32))


def quantise(
    weight: torch.Tensor,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    shuffled: bool = False,
    scale_dtype: torch.dtype = torch.float16,
) -> Quantised:
    values = weight.float().numpy()
    out, width = values.shape
    size = width if group == -1 else group
    group_of = np.arange(width) // size
    if shuffled:
        group_of = np.random.default_rng(width).permutation(group_of)
    groups, top = -(-width // size), 2**bits - 1
    scales, zeros = np.zeros((out, groups), np.float32), np.zeros((out, groups), np.int64)
    for index in range(groups):
        part = values[:, group_of == index]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, index] = np.maximum(high, -low) / (top // 2)
            zeros[:, index] = 2 ** (bits - 1)
        else:
            scales[:, index] = (high - low) / top
            zeros[:, index] = np.clip(np.round(-low / scales[:, index]), 0, top)
    stored = torch.from_numpy(scales).to(scale_dtype)
    steps = values / stored.float().numpy()[:, group_of]
    levels = np.clip(np.round(steps) + zeros[:, group_of], 0, top).astype(np.int64)
    return Quantised(levels, zeros, stored, group_of, bits)


def words(values: Array, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """int32 words of the last axis; `order` names the value that stands at each place of a word."""
    per = 32 // bits
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per)])
    packed = np.zeros((*padded.shape[:-1], padded.shape[-1] // per), np.uint32)
    for place, offset in enumerate(order or tuple(range(per))):
        packed |= padded[..., offset::per].astype(np.uint32) << np.uint32(place * bits)
    return torch.from_numpy(packed.view(np.int32).copy())


def gptq(layer: str, weight: Quantised, version: int = 1) -> Stored:
    zeros = (weight.zeros - (1 if version == 1 else 0)) % 2**weight.bits
    return {
        f"{layer}.qweight": words(weight.levels, weight.bits).t().contiguous(),
        f"{layer}.qzeros": words(zeros.T, weight.bits),
        f"{layer}.scales": weight.scales.t().contiguous(),
        f"{layer}.g_idx": torch.from_numpy(weight.group_of.astype(np.int32)),
    }


def awq(layer: str, weight: Quantised) -> Stored:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{layer}.qweight": words(np.ascontiguousarray(weight.levels.T), 4, order),
        f"{layer}.qzeros": words(np.ascontiguousarray(weight.zeros.T), 4, order),
        f"{layer}.scales": weight.scales.t().contiguous(),
    }


def packed_tensors(layer: str, weight: Quantised, *, symmetric: bool = True, order: bool = False) -> Stored:
    """The layout `pack-quantized`."""
    stored = {
        f"{layer}.weight_packed": words(weight.levels, weight.bits),
        f"{layer}.weight_scale": weight.scales,
        f"{layer}.weight_shape": torch.tensor(weight.levels.shape),
    }
    if not symmetric:
        stored[f"{layer}.weight_zero_point"] = words(weight.zeros.T, weight.bits).t().contiguous()
    if order:
        stored[f"{layer}.weight_g_idx"] = torch.from_numpy(weight.group_of.astype(np.int32))
    return stored


def int8_tensors(layer: str, weight: Quantised) -> Stored:
    """The layout `int-quantized`."""
    return {
        f"{layer}.weight": torch.from_numpy((weight.levels - 128).astype(np.int8)),
        f"{layer}.weight_scale": weight.scales,
    }


def compressed_settings(
    bits: int, group: int, layout: str = "pack-quantized", **weights: Any
) -> dict[str, Any]:
    scheme = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group,
        "dynamic": False,
        "actorder": None,
    }
    layers = {"targets": ["Linear"], "weights": scheme | weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": layers},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


@dataclass(frozen=True)
class Layout:
    """How to store a model: the arguments of `quantise`, the writer of a layer, and the config's settings."""

    quantise: dict[str, Any]
    store: Callable[[str, Quantised], Stored]
    settings: dict[str, Any]
    quant: str = "int4"


def _gptq_settings(bits: int, group: int, **changes: Any) -> dict[str, Any]:
    usual = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True}
    return usual | changes


LAYOUTS: dict[str, Layout] = {
    "gptq": Layout({"group": 128}, gptq, _gptq_settings(4, 128)),
    "gptq-asymmetric": Layout({"symmetric": False}, gptq, _gptq_settings(4, 32, sym=False)),
    "gptq-v2": Layout(
        {"group": 64, "symmetric": False},
        lambda layer, weight: gptq(layer, weight, 2),
        _gptq_settings(4, 64, sym=False, checkpoint_format="gptq_v2"),
    ),
    "gptq-desc_act": Layout({"shuffled": True}, gptq, _gptq_settings(4, 32, desc_act=True)),
    "gptq-column": Layout({"group": -1}, gptq, _gptq_settings(4, -1, desc_act=True)),
    "gptq-8": Layout({"bits": 8, "group": 64}, gptq, _gptq_settings(8, 64), "w8a16"),
    "awq": Layout(
        {"group": 64, "symmetric": False},
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    ),
    "w4a16": Layout({"scale_dtype": torch.bfloat16}, packed_tensors, compressed_settings(4, 32)),
    "w4a16-asymmetric": Layout(
        {"symmetric": False},
        lambda layer, weight: packed_tensors(layer, weight, symmetric=False),
        compressed_settings(4, 32, symmetric=False),
    ),
    "w4a16-actorder": Layout(
        {"shuffled": True},
        lambda layer, weight: packed_tensors(layer, weight, order=True),
        compressed_settings(4, 32, actorder="group"),
    ),
    "w4a16-channel": Layout({"group": -1}, packed_tensors, compressed_settings(4, -1)),
    "w8a16": Layout({"bits": 8, "group": -1}, packed_tensors, compressed_settings(8, -1), "w8a16"),
    "w8a16-group": Layout({"bits": 8}, packed_tensors, compressed_settings(8, 32), "w8a16"),
    "w8a16-int": Layout(
        {"bits": 8, "group": -1}, int8_tensors, compressed_settings(8, -1, "int-quantized"), "w8a16"
    ),
}


def write_integer_checkpoint(plain: Path, directory: Path, layout: Layout) -> Stored:
    """Write the checkpoint `plain` with quantised linear layers; return their weights in float32 by name."""
    shutil.copytree(plain, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": layout.settings}))
    stored: Stored = {}
    meant: Stored = {}
    read = [load_file(file) for file in sorted(plain.glob("*.safetensors"))]
    for name, tensor in (pair for tensors in read for pair in tensors.items()):
        routers = (".mlp.gate.weight", ".block_sparse_moe.gate.weight", ".router.layer.weight")
        other = name.endswith(routers) or "vision" in name
        if ".layers." in name and tensor.ndim == 2 and not other:
            weight = quantise(tensor, **layout.quantise)
            stored |= layout.store(name.removesuffix(".weight"), weight)
            meant[name] = weight.plain
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    return meant
