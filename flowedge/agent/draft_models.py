"""The models that a draft node holds. Imports torch: to be imported when a role is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flowedge
from flowedge.drafting.eagle import EagleDrafter
from flowedge.drafting.eagle_head import EagleHead, load_eagle_head
from flowedge.errors import CheckpointError
from flowedge.models.cache import SessionCache
from flowedge.models.checkpoint import BUNDLED, Checkpoint
from flowedge.models.features import max_positions
from flowedge.models.head import LMHead, load_embedding
from flowedge.models.quantize import module_bytes
from flowedge.models.tensors import payload_dtype, torch_dtype
from flowedge.models.tokenizer import StreamDecoder, eos_token_ids, load_tokenizer
from flowedge.runtime.draft_node import DraftNode, DraftNodeSpec
from flowedge.runtime.executors import HeadExecutor
from flowedge.strategies.registry import make_strategy

NO_DRAFTER = "none"
PREFILL_ROWS = 128  # of a chunk; several chunks of a long prompt are in the pipeline at once


@dataclass(frozen=True)
class OpenedCheckpoint:
    """What the set-up of a pipeline needs to know of the model."""

    checkpoint: Checkpoint
    num_layers: int
    fingerprint: str

    @classmethod
    def open(cls, model: str) -> OpenedCheckpoint:
        """CheckpointError when the model cannot be opened."""
        checkpoint = Checkpoint.open(model)
        return cls(checkpoint, int(checkpoint.config.num_hidden_layers), checkpoint.fingerprint)


@dataclass(frozen=True)
class DraftModels:
    """Tokenizer, LM head and drafter of a draft node.

    Attributes:
        eos: token ids that end an answer; dtype: numpy name of the hidden states on the wire.
        weight_bytes: of head, embedding and drafter together.
    """

    config: Any
    tokenizer: Any
    eos: frozenset[int]
    executor: HeadExecutor
    dtype: str
    weight_bytes: int

    @classmethod
    def load(cls, checkpoint: Checkpoint, drafter: str, dtype_name: str) -> DraftModels:
        """`drafter` is "none" (or ""), "bundled" or a directory. Raises CheckpointError, BadRequestError."""
        dtype = torch_dtype(dtype_name)
        head = LMHead.load(checkpoint, dtype=dtype)
        tokenizer = load_tokenizer(checkpoint)
        weight_bytes = head.weight_bytes
        eagle: EagleDrafter | None = None
        if drafter not in ("", NO_DRAFTER):
            eagle_head = load_eagle_head(_drafter_directory(drafter), dtype)
            _check_fits(eagle_head, checkpoint.config, drafter)
            embedding = load_embedding(checkpoint, dtype=dtype, shared_with=head)
            eagle = EagleDrafter(eagle_head, head, embedding)
            weight_bytes += module_bytes(eagle_head)
            if embedding.weight is not head.weight:
                weight_bytes += module_bytes(embedding)
        return cls(
            config=checkpoint.config,
            tokenizer=tokenizer,
            eos=eos_token_ids(checkpoint, tokenizer),
            executor=HeadExecutor(head, eagle),
            dtype=payload_dtype(dtype),
            weight_bytes=weight_bytes,
        )

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return int(self.config.vocab_size)

    def row_bytes(self, num_layers: int) -> int:
        """The bytes that one row of cache takes in so many layers."""
        dtype = self.executor.head.weight.dtype
        return SessionCache.bytes_per_row(self.config, num_layers, dtype)


def make_machine(device: str, models: DraftModels, num_stages: int) -> DraftNode:
    """The state machine of a draft node with these models, in front of so many stages."""
    spec = DraftNodeSpec(
        width=int(models.config.hidden_size),
        dtype=models.dtype,
        max_positions=max_positions(models.config),
        prefill_rows=PREFILL_ROWS,
        has_drafter=models.executor.drafter is not None,
        num_stages=num_stages,
    )
    return DraftNode(
        device,
        spec,
        lambda request: make_strategy(request.strategy, request.strategy_options),
        lambda: StreamDecoder(models.tokenizer),
    )


def _drafter_directory(drafter: str) -> Path:
    if drafter == BUNDLED:
        return Path(flowedge.__file__).parent / "bundled" / "eagle"
    directory = Path(drafter).expanduser()
    if not directory.is_dir():
        raise CheckpointError(f"drafter {drafter}: no such directory")
    return directory


def _check_fits(head: EagleHead, config: Any, drafter: str) -> None:
    found = (int(head.config.hidden_size), int(head.config.vocab_size))
    wanted = (int(config.hidden_size), int(config.vocab_size))
    if found != wanted:
        raise CheckpointError(
            f"drafter {drafter} is for a model of hidden size {found[0]} and {found[1]} tokens, "
            f"this one has {wanted[0]} and {wanted[1]}"
        )
