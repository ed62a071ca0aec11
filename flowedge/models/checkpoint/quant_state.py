"""The JSON object, in a tensor of bytes, that bitsandbytes stores beside a 4-bit weight."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from flowedge.core.errors import CheckpointError

TYPES = ("nf4", "fp4")
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_KEY = "weight.quant_state.bitsandbytes__"


@dataclass(frozen=True)
class StoredState:
    """How a weight of `shape` was quantised.

    Attributes:
        quant_type: a name of TYPES; blocksize: the number of weights that share a scale.
        nested_blocksize: the number of scales that share a scale of their own; None for float scales.
        nested_offset: the value that was subtracted from the scales before they were quantised.
    """

    quant_type: str
    blocksize: int
    shape: tuple[int, int]
    nested_blocksize: int | None = None
    nested_offset: float = 0.0


def state_name(quant_type: str) -> str:
    """The name of the tensor that holds the state, without the layer's name in front."""
    return _KEY + quant_type


def write_state(state: StoredState) -> dict[str, torch.Tensor]:
    """The tensor of the state by its name, as bitsandbytes writes it."""
    content = {
        "quant_type": state.quant_type,
        "blocksize": state.blocksize,
        "dtype": "float32",
        "shape": state.shape,
    }
    if state.nested_blocksize is not None:
        content |= {
            "nested_blocksize": state.nested_blocksize,
            "nested_dtype": "float32",
            "nested_offset": state.nested_offset,
        }
    packed = torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)
    return {state_name(state.quant_type): packed}


def read_state(tensors: dict[str, torch.Tensor]) -> StoredState:
    """Read the state among a weight's tensors.

    Raises:
        CheckpointError: when there is no state, or its values are not valid.
    """
    found = [tensors[state_name(name)] for name in TYPES if state_name(name) in tensors]
    if len(found) != 1 or found[0].dtype != torch.uint8:
        raise CheckpointError("a 4-bit weight has no quant_state of nf4 or fp4 beside it")
    try:
        content = json.loads(bytes(found[0].tolist()))
        rows, columns = content["shape"]
        nested = content.get("nested_blocksize")
        state = StoredState(
            str(content["quant_type"]),
            int(content["blocksize"]),
            (int(rows), int(columns)),
            None if nested is None else int(nested),
            float(content.get("nested_offset", 0.0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"the quant_state of a 4-bit weight is not valid: {error}") from error
    if state.quant_type not in TYPES or state.blocksize not in BLOCK_SIZES:
        raise CheckpointError(f"the quant_state of a 4-bit weight is not valid: {state}")
    return state
