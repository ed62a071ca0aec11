"""The memory that a checkpoint takes, from its config and its files' headers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flowedge.models.architecture import EMBEDDING, FINAL_NORM, LAYER_INPUTS, LM_HEAD, Architecture
from flowedge.models.attention.kv_store import KvFormat, kv_row_bytes
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import max_positions
from flowedge.models.host.payloads import DTYPES
from flowedge.models.lm_head import layer_input_bytes
from flowedge.models.loading import checkpoint_quant, layer_bytes
from flowedge.models.quant.quantize import QUANTISATIONS
from flowedge.models.recurrent.row_states import session_bytes
from flowedge.models.token_table import table_bytes


@dataclass(frozen=True)
class ModelSizes:
    """A model's sizes.

    Attributes:
        parameters: the number of parameters of the decoder and its LM head; None for a quantised checkpoint,
            whose headers do not tell.
        stored_quant: the quantisation that the checkpoint itself is stored in.
        stored_by: the method that stored its weights as integers, such as GPTQ; "" for others.
        layer_bytes: the bytes of each layer, by quantisation.
        embedding_bytes: of all that embeds tokens, by quantisation. norm_bytes: bytes in `dtype`.
        head_bytes: by quantisation, also of a tied head: draft node and first stage are different devices.
        kv_bytes: the bytes of one token's keys and values in each layer, by dtype; "int8" is the format. A
            layer that reads those of an earlier one has none.
        recurrent_layers: indices of the layers that have a state in place of keys and values.
        attending_layers: indices of the layers that have keys and values.
        state_bytes: the bytes of one session in one of these layers.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    tied: bool
    dtype: str
    parameters: int | None
    stored_quant: str
    stored_by: str
    layer_bytes: dict[str, list[int]]
    embedding_bytes: dict[str, int]
    norm_bytes: int
    head_bytes: dict[str, int]
    kv_bytes: dict[str, list[int]]
    recurrent_layers: list[int]
    attending_layers: list[int]
    state_bytes: int


def inspect_checkpoint(checkpoint: Checkpoint, dtype_name: str, quants: list[str]) -> ModelSizes:
    """The sizes of a checkpoint's model.

    Args:
        dtype_name: the dtype of everything that is not quantised, a key of DTYPES.
        quants: the quantisations to compute layer sizes for; empty for all that the checkpoint allows.

    Raises:
        BadRequestError: when a quantisation does not exist, or the checkpoint is stored in another one.
    """
    config, dtype = checkpoint.config, DTYPES[dtype_name]
    if not quants:
        quants = list(QUANTISATIONS) if checkpoint.quant == "none" else [checkpoint.quant]
    resolved = [checkpoint_quant(checkpoint, quant) for quant in quants]
    by_layer = [layer_bytes(checkpoint, index, resolved, dtype) for index in range(config.num_hidden_layers)]
    embedding, head = (
        {quant: table_bytes(checkpoint, name, dtype, "cpu", quant) for quant in resolved}
        for name in (checkpoint.embedding_name, checkpoint.head_name)
    )
    if checkpoint.architecture.layer_input:
        embedding = {
            quant: size + layer_input_bytes(checkpoint, dtype, quant) for quant, size in embedding.items()
        }
    net = checkpoint.architecture.recurrence
    return ModelSizes(
        model_type=str(config.model_type),
        num_layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        max_positions=max_positions(config),
        tied=checkpoint.head_name == checkpoint.embedding_name,
        dtype=dtype_name,
        parameters=None if checkpoint.quant != "none" else _count(checkpoint),
        stored_quant=checkpoint.quant,
        stored_by=checkpoint.integer_format.method if checkpoint.integer_format else "",
        layer_bytes={quant: [sizes[quant] for sizes in by_layer] for quant in resolved},
        embedding_bytes=embedding,
        norm_bytes=int(config.hidden_size * dtype.itemsize),
        head_bytes=head,
        kv_bytes={
            **{name: _kv_bytes(checkpoint.architecture, each) for name, each in DTYPES.items()},
            "int8": _kv_bytes(checkpoint.architecture, dtype, "int8"),
        },
        recurrent_layers=list(filter(checkpoint.architecture.is_recurrent, range(len(by_layer)))),
        attending_layers=list(filter(checkpoint.architecture.attends, range(len(by_layer)))),
        state_bytes=0 if net is None else session_bytes(net),
    )


def _kv_bytes(architecture: Architecture, dtype: torch.dtype, kv: KvFormat = "native") -> list[int]:
    """The bytes of a token's keys and values in each layer."""
    return [
        kv_row_bytes([architecture.key_heads(layer)], dtype, kv)
        if architecture.attends(layer) and read == layer
        else 0
        for layer, read in enumerate(architecture.key_layers)
    ]


def _count(checkpoint: Checkpoint) -> int:
    """The number of the decoder's parameters; a checkpoint may hold other models beside it."""
    own = ("model.layers.", EMBEDDING, FINAL_NORM, LM_HEAD, *LAYER_INPUTS)
    return sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names if name.startswith(own))
