"""The models that a draft node holds. Imports torch: to be imported when a role is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowedge.agent.roles.coordinator import MiddleSetup
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.loading import TargetModel, drafter_taps, load_drafter
from flowedge.drafting.middles import check_middle
from flowedge.engine.draft_node import DraftNode, DraftNodeSpec
from flowedge.engine.executors import HeadExecutor
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.config_support import max_positions
from flowedge.models.checkpoint.tokenizer import StreamDecoder, eos_token_ids, load_tokenizer
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps, row_width
from flowedge.models.layers.tensors import payload_dtype, torch_dtype
from flowedge.strategies.registry import make_strategy

PREFILL_ROWS = 128  # of a chunk; several chunks of a long prompt are in the pipeline at once


@dataclass(frozen=True)
class OpenedCheckpoint:
    """What the set-up of a pipeline needs to know of the model."""

    checkpoint: Checkpoint
    num_layers: int
    fingerprint: str
    taps: Taps
    middles: tuple[MiddleSetup, ...] = ()

    @classmethod
    def open(
        cls,
        checkpoint: Checkpoint,
        drafters: Sequence[str],
        middles: Sequence[str] = (),
        dtype_name: str = "",
    ) -> OpenedCheckpoint:
        """CheckpointError or BadRequestError when the model, or another's config, cannot be opened.

        middles: the middle models, as they are named; dtype_name: what they are to be held in.
        """
        num_layers = int(checkpoint.config.num_hidden_layers)
        taps = drafter_taps(drafters, num_layers)
        setups = tuple(open_middles(checkpoint, middles, dtype_name))
        return cls(checkpoint, num_layers, checkpoint.fingerprint, taps, setups)


@dataclass(frozen=True)
class DraftModels:
    """Tokenizer, LM head and drafter of a draft node.

    Attributes:
        eos: token ids that end an answer; dtype: numpy name of the hidden states on the wire.
        weight_bytes: of head and drafter together.
    """

    config: Any
    tokenizer: Any
    eos: frozenset[int]
    executor: HeadExecutor
    dtype: str
    weight_bytes: int

    @classmethod
    def load(cls, checkpoint: Checkpoint, drafters: Sequence[str], dtype_name: str) -> DraftModels:
        """drafters: names (see drafter_names). Raises CheckpointError, BadRequestError."""
        dtype = torch_dtype(dtype_name)
        head = LMHead.load(checkpoint, dtype=dtype)
        tokenizer = load_tokenizer(checkpoint)
        loaded = load_drafter(drafters, TargetModel(checkpoint, head, tokenizer, dtype))
        return cls(
            config=checkpoint.config,
            tokenizer=tokenizer,
            eos=eos_token_ids(checkpoint, tokenizer),
            executor=HeadExecutor(head, loaded),
            dtype=payload_dtype(dtype),
            weight_bytes=head.weight_bytes + (loaded.weight_bytes if loaded is not None else 0),
        )

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return int(self.config.vocab_size)

    def row_bytes(self, num_layers: int) -> int:
        """The bytes that one row of cache takes in so many layers."""
        dtype = self.executor.head.weight.dtype
        return SessionCache.bytes_per_row(self.config, num_layers, dtype)

    def drafter_bytes(self, rows: int) -> int:
        """The bytes that the drafter takes for a session of so many rows."""
        drafter = self.executor.drafter
        return drafter.session_bytes(rows) if drafter is not None else 0


def required_memory(checkpoint: Checkpoint, drafters: Sequence[str], dtype_name: str) -> tuple[int, int]:
    """Bytes of weights of head and drafter, and of the drafter's cache for one token; no tensor is read.

    Errors as DraftModels.load.
    """
    dtype = torch_dtype(dtype_name)
    head = int(checkpoint.config.vocab_size * checkpoint.config.hidden_size) * dtype.itemsize
    size = drafter_memory(drafters, checkpoint, dtype)
    return head + size.weights, size.row


def open_middles(checkpoint: Checkpoint, sources: Sequence[str], dtype_name: str) -> list[MiddleSetup]:
    """The middle models of a target, smallest first; their files are looked at, their weights not read.

    CheckpointError or BadRequestError for one that cannot be used with it.
    """
    tokenizer = load_tokenizer(checkpoint) if sources else None
    opened = [check_middle(source, tokenizer) for source in sources]
    return [
        MiddleSetup(
            route=route,
            model=source,
            fingerprint=middle.fingerprint,
            num_layers=int(middle.config.num_hidden_layers),
            vocab_size=int(checkpoint.config.vocab_size),
            row_bytes=SessionCache.bytes_per_row(
                middle.config, int(middle.config.num_hidden_layers), torch_dtype(dtype_name)
            ),
        )
        for route, (source, middle) in enumerate(zip(sources, opened, strict=True), start=1)
    ]


def make_machine(
    device: str,
    models: DraftModels,
    num_stages: int,
    taps: Taps,
    num_middles: int = 0,
    max_sessions: int = DraftNodeSpec.max_sessions,
) -> DraftNode:
    """The state machine of a draft node with these models, in front of stages with these taps.

    num_middles: middle models beside them; max_sessions: most sessions open at once.
    """
    drafter = models.executor.drafter
    spec = DraftNodeSpec(
        width=row_width(int(models.config.hidden_size), taps, int(models.config.num_hidden_layers)),
        dtype=models.dtype,
        max_positions=max_positions(models.config),
        prefill_rows=PREFILL_ROWS,
        has_drafter=drafter is not None,
        needs_features=drafter is not None and drafter.needs_features,
        num_stages=num_stages,
        num_middles=num_middles,
        vocab_size=models.vocab_size,
        max_sessions=max_sessions,
    )
    return DraftNode(
        device,
        spec,
        lambda request: make_strategy(request.strategy, request.strategy_options),
        partial(StreamDecoder, models.tokenizer),  # which holds no weights, as `models` would
    )
