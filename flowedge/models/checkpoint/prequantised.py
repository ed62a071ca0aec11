"""Checkpoints whose linear layers are stored quantised by bitsandbytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.quant_state import TYPES, state_name

# The parts of a weight that are counted in memory; the others are the same few bytes for every weight.
COUNTED = ("weight", "SCB", "weight.absmax", "weight.nested_absmax")
_METHOD = "bitsandbytes"


def stored_quant(raw_config: dict[str, Any], directory: Path) -> str:
    """The quantisation that a config.json gives for its weights; "none" when it gives none.

    Raises:
        CheckpointError: when the weights are quantised by another method than bitsandbytes.
    """
    settings = raw_config.get("quantization_config")
    if settings is None:
        return "none"
    if not isinstance(settings, dict):
        raise CheckpointError(f"{directory}: quantization_config in config.json is not a JSON object")
    eight, four = bool(settings.get("load_in_8bit")), bool(settings.get("load_in_4bit"))
    method = settings.get("quant_method") or (_METHOD if eight or four else "an unnamed method")
    if method != _METHOD:
        raise CheckpointError(
            f"{directory}: the checkpoint is quantised by {method}, which is not supported; "
            "give the original checkpoint, or one that bitsandbytes quantised"
        )
    if eight == four:
        raise CheckpointError(f"{directory}: quantization_config is neither of 8 bits nor of 4 bits")
    if eight:
        return "int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if kind not in TYPES:
        raise CheckpointError(f"{directory}: bnb_4bit_quant_type {kind!r} is not one of {', '.join(TYPES)}")
    return str(kind) + ("-dq" if settings.get("bnb_4bit_use_double_quant") else "")


def part_names(quant: str, name: str) -> dict[str, str]:
    """The stored names of a quantised weight's tensors, by their names in its encoded form.

    A layer that was left out of the quantisation stores the tensor `name` alone.
    """
    layer = name.removesuffix("weight")
    if quant == "int8":
        return {"weight": name, "SCB": f"{layer}SCB"}
    parts = ["weight", "weight.absmax", "weight.quant_map", state_name(quant.removesuffix("-dq"))]
    if quant.endswith("-dq"):
        parts += ["weight.nested_absmax", "weight.nested_quant_map"]
    return {part: layer + part for part in parts}


def marker(quant: str, name: str) -> str:
    """The tensor whose presence tells that the weight `name` is stored quantised."""
    return name.removesuffix("weight") + ("SCB" if quant == "int8" else "weight.absmax")
