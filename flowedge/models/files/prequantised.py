"""Linear layers that bitsandbytes stored quantised: their parts, and the quantisation of a checkpoint.

Beside a 4-bit weight, bitsandbytes stores a JSON object in a tensor of bytes, called its state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from flowedge.core.errors import CheckpointError
from flowedge.core.plain_text import visible_field

TYPES = ("nf4", "fp4")
_KEY = "weight.quant_state.bitsandbytes__"
# The parts of a weight that are counted in memory; the others are the same few bytes for every weight.
COUNTED = ("weight", "SCB", "weight.absmax", "weight.nested_absmax")
_METHOD = "bitsandbytes"


def stored_quant(settings: dict[str, Any] | None, directory: Path) -> str:
    """The quantisation that the settings of a quantiser give for the weights; "none" without settings.

    Raises:
        CheckpointError: when the quantiser is not bitsandbytes, or its settings are not supported.
    """
    if settings is None:
        return "none"
    eight, four = bool(settings.get("load_in_8bit")), bool(settings.get("load_in_4bit"))
    method = settings.get("quant_method") or (_METHOD if eight or four else "an unnamed method")
    if method != _METHOD:
        raise CheckpointError(
            f"{directory}: the checkpoint is quantised by {visible_field(str(method), 80)}, which is not "
            "supported; "
            "give the original checkpoint, or a checkpoint of bitsandbytes, GPTQ, AWQ, AutoRound or "
            "compressed-tensors"
        )
    if eight == four:
        raise CheckpointError(f"{directory}: quantization_config is neither of 8 bits nor of 4 bits")
    if eight:
        return "llm-int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if kind not in TYPES:
        raise CheckpointError(f"{directory}: bnb_4bit_quant_type {kind!r} is not one of {', '.join(TYPES)}")
    return str(kind) + ("-dq" if settings.get("bnb_4bit_use_double_quant") else "")


def tensor_names(quant: str, name: str) -> dict[str, str]:
    """The stored names of a quantised weight's tensors, by their names in its encoded form.

    A layer that was left out of the quantisation stores the tensor `name` alone.
    """
    layer = name.removesuffix("weight")
    if quant == "llm-int8":
        return {"weight": name, "SCB": f"{layer}SCB"}
    parts = ["weight", "weight.absmax", "weight.quant_map", state_name(quant.removesuffix("-dq"))]
    if quant.endswith("-dq"):
        parts += ["weight.nested_absmax", "weight.nested_quant_map"]
    return {part: layer + part for part in parts}


def marker(quant: str, name: str) -> str:
    """The tensor whose presence tells that the weight `name` is stored quantised."""
    return name.removesuffix("weight") + ("SCB" if quant == "llm-int8" else "weight.absmax")


@dataclass(frozen=True)
class StoredState:
    """How a weight of `shape` was quantised.

    Attributes:
        blocksize: the number of weights that share a scale.
        nested_blocksize: the number of scales that share a scale of their own; None for float scales.
        nested_offset: the value that was subtracted from the scales before they were quantised.
    """

    quant_type: Literal["nf4", "fp4"]
    blocksize: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096]
    shape: tuple[int, int]
    nested_blocksize: int | None = None
    nested_offset: float = 0.0


def state_name(quant_type: str) -> str:
    """The name of the tensor that holds the state, without the layer's name in front."""
    return _KEY + quant_type


def read_state(tensors: dict[str, torch.Tensor]) -> StoredState:
    """Read the state among a weight's tensors."""
    found = [tensors[state_name(name)] for name in TYPES if state_name(name) in tensors]
    if len(found) != 1 or found[0].dtype != torch.uint8:
        raise CheckpointError("a 4-bit weight has no quant_state of nf4 or fp4 beside it")
    try:
        return TypeAdapter(StoredState).validate_json(bytes(found[0].tolist()))
    except ValidationError as error:
        raise CheckpointError(f"the quant_state of a 4-bit weight is not valid: {error}") from error
