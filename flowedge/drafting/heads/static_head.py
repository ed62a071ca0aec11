"""Forwards of an EAGLE head over static tensors: of a growth, or of true rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from flowedge.drafting.heads.draft_head import StepHead
from flowedge.drafting.heads.head_rows import GrownRows, HeadRows, TrueRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.attention.attention import Scoring
from flowedge.models.cuda_graphs.recording import Recording, RecordingMaker
from flowedge.models.cuda_graphs.static_decoding import StaticKeys
from flowedge.models.cuda_graphs.static_keys import StaticMaskedKeys, StaticShape
from flowedge.models.host.copies import HostArray, to_device
from flowedge.models.rotary import Angles


@dataclass(frozen=True, eq=False)
class HeadModules:
    """What a head computes with.

    Attributes:
        proposals: over the target's LM head; embedding: the target's, or the head's own.
    """

    head: StepHead
    proposals: ProposalHead
    embedding: nn.Embedding
    own_columns: int | None

    @property
    def columns(self) -> int:
        """The number of columns of the head's logits."""
        return self.proposals.columns if self.own_columns is None else self.own_columns


@dataclass(frozen=True, eq=False)
class StaticAttention:
    """The AttentionContext of a static forward."""

    rotation: Angles
    cached: StaticKeys

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> Tensor:
        self.cached.store_rows(0, torch.stack((keys, values)))
        scoring = Scoring(queries.shape[-1] ** -0.5 if scaling is None else scaling)
        return self.cached.attend(0, queries[None], keys.shape[0], scoring)


R = TypeVar("R", bound=HeadRows)


class StaticHead(ABC, Generic[R]):
    """Computes forwards of at most `shape.rows` rows over a store, by a piece that is made at the first."""

    def __init__(
        self, modules: HeadModules, store: HeadStore, shape: StaticShape, maker: RecordingMaker
    ) -> None:
        self._modules = modules
        self._store = store
        self._shape = shape
        self._maker = maker
        self._keys = StaticMaskedKeys(store, [None], shape, store.kv.dtype)
        self._inputs: list[Tensor] = []
        self._pieces: list[Recording] = []

    @property
    def nbytes(self) -> int:
        return sum(int(tensor.nbytes) for tensor in self._inputs)

    def fill(self, rows: R) -> bool:
        """Copy what the forward computes to the static tensors; False when the rows do not fit the shape."""
        plan = self._keys.plan(rows.paths.padded(self._shape.rows))
        if plan is None:
            return False
        copied = to_device(
            self._store.kv.device,
            self._shape.padded(rows.tokens),
            self._shape.padded(rows.positions),
            self._shape.slots(rows.first, rows.stop, self._store.rows - 1),
            *self._keys.arrays(plan),
            *self._arrays(rows),
        )
        if self._inputs:
            torch._foreach_copy_(self._inputs, copied)
        else:
            self._inputs = copied
        return True

    def make_pieces(self) -> None:
        if not self._pieces:
            self._pieces = self._maker.make([self._compute])

    def run(self) -> None:
        """Compute the rows of the last `fill`, and store what they predict."""
        for piece in self._pieces:
            piece.run()

    def _compute(self) -> None:
        tokens, positions, slots, context, seen, *own = self._inputs
        seen_keys = self._keys.seen_keys((context, seen), positions)
        head, states = self._modules.head, self._store.states
        embedded = self._modules.embedding(tokens).to(states.dtype)
        features = self._features(own)
        cached = StaticKeys(self._store, slots, seen_keys)
        attention = StaticAttention(head.rotation(features, positions), cached)
        predicted = head.predict(embedded, features, attention)
        predicted = self._corrected(predicted, features, slots, own)
        states.index_copy_(0, slots, predicted)
        self._finish(predicted)

    @abstractmethod
    def _arrays(self, rows: R) -> Sequence[HostArray]:
        """Further arrays of the rows, padded, which the methods below are given on the device."""

    @abstractmethod
    def _features(self, own: Sequence[Tensor]) -> Tensor:
        """The states [rows, hidden] before the rows."""

    @abstractmethod
    def _corrected(self, predicted: Tensor, features: Tensor, slots: Tensor, own: Sequence[Tensor]) -> Tensor:
        """The predictions [rows, hidden], corrected by the errors of earlier ones where these are stored."""

    def _finish(self, predicted: Tensor) -> None:
        """Use the predictions [rows, hidden]."""


class StaticGrowth(StaticHead[GrownRows]):
    """Computes rows of a draft tree, and their logits."""

    def __init__(
        self, modules: HeadModules, store: HeadStore, shape: StaticShape, maker: RecordingMaker
    ) -> None:
        super().__init__(modules, store, shape, maker)
        self._logits = torch.zeros((shape.rows, modules.columns), device=store.kv.device)

    @property
    def nbytes(self) -> int:
        return super().nbytes + int(self._logits.nbytes)

    def logits(self, rows: int) -> Tensor:
        """The logits float32 [rows, columns] of the last forward's first rows."""
        return self._logits[:rows].clone()

    def _arrays(self, rows: GrownRows) -> Sequence[HostArray]:
        return self._shape.padded(rows.before), np.array([rows.true_rows - 1])

    def _features(self, own: Sequence[Tensor]) -> Tensor:
        before, _ = own
        return self._store.states.index_select(0, before)

    def _corrected(self, predicted: Tensor, features: Tensor, slots: Tensor, own: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        _, known = own
        recall = self._store.recall
        return predicted if recall is None else recall.corrected_within(predicted, known, self._shape.columns)

    def _finish(self, predicted: Tensor) -> None:
        self._logits.copy_(self._modules.head.draft_logits(predicted, self._modules.proposals))


class StaticExtension(StaticHead[TrueRows]):
    """Computes rows of the text."""

    def _arrays(self, rows: TrueRows) -> Sequence[HostArray]:
        # The first row of a text follows no prediction: its error is the scratch row's.
        scratch = self._store.rows - 1
        before = self._shape.slots(rows.first - 1, rows.stop - 1, scratch)
        before[before < 0] = scratch
        return self._shape.padded(rows.given), before

    def _features(self, own: Sequence[Tensor]) -> Tensor:
        given, _ = own
        return self._modules.head.true_states(given.to(self._store.states.dtype))

    def _corrected(self, predicted: Tensor, features: Tensor, slots: Tensor, own: Sequence[Tensor]) -> Tensor:
        recall = self._store.recall
        if recall is None:
            return predicted
        _, before = own
        recall.note(slots, predicted, before, features)
        _, positions, *_ = self._inputs  # the row's number, also in padding
        return recall.corrected_within(predicted, positions, self._shape.columns)
