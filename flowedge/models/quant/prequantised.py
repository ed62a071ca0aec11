"""Checkpoints whose linear layers are stored quantised by bitsandbytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.quant.quant_state import TYPES, state_name

COUNTED = ("weight", "SCB", "weight.absmax", "weight.nested_absmax")  # the rest is the same few bytes for all
_METHOD = "bitsandbytes"


def stored_quant(raw_config: dict[str, Any], directory: Path) -> str:
    """The quantisation that a config.json says its weights are in; "none" when it says nothing.

    CheckpointError for one that is not by bitsandbytes, which names it.
    """
    settings = raw_config.get("quantization_config")
    if settings is None:
        return "none"
    if not isinstance(settings, dict):
        raise CheckpointError(f"{directory}: config.json has a quantization_config that is no object")
    eight, four = bool(settings.get("load_in_8bit")), bool(settings.get("load_in_4bit"))
    method = settings.get("quant_method") or (_METHOD if eight or four else "an unnamed method")
    if method != _METHOD:
        raise CheckpointError(
            f"{directory}: the checkpoint is quantised by {method}, which is not supported; "
            "give the original one, or one that bitsandbytes quantised"
        )
    if eight == four:
        raise CheckpointError(f"{directory}: quantization_config is neither of 8 bits nor of 4 bits")
    if eight:
        return "int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if kind not in TYPES:
        raise CheckpointError(f"{directory}: bnb_4bit_quant_type {kind!r} is not one of {', '.join(TYPES)}")
    return str(kind) + ("-dq" if settings.get("bnb_4bit_use_double_quant") else "")


def resolve_quant(asked: str, stored: str, directory: Path) -> str:
    """The quantisation that layers are loaded in: as stored, or else as asked for.

    BadRequestError when the checkpoint is quantised already and another quantisation is asked for.
    """
    if stored == "none" or asked in ("none", stored):
        return asked if stored == "none" else stored
    raise BadRequestError(
        f"{directory} is quantised in {stored} already, so it cannot be loaded in {asked}; "
        f"leave the quantisation away, or give the original checkpoint"
    )


def part_names(quant: str, name: str) -> dict[str, str]:
    """The stored tensors of a quantised weight `name`, by their names in its encoded form.

    Not all of them need to be there: a layer that was left out of the quantisation has the weight alone.
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
