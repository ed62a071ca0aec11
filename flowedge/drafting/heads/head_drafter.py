"""Drafting with an EAGLE head over the target's hidden states."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, Frontier
from flowedge.drafting.heads.draft_head import DraftHead, KeyValueViews
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_decoding import HeadDecoding
from flowedge.drafting.heads.head_rows import GrownRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.native_eagle import NativeEagle, not_native_reason
from flowedge.drafting.heads.static_head import HeadModules
from flowedge.drafting.model_drafter import GrownNode, ModelDrafter, ModelSession
from flowedge.drafting.vocabulary.proposal_head import ProposalHead
from flowedge.drafting.vocabulary.seen_tokens import seen_by
from flowedge.models.checkpoint.config_support import fixed_rope_length
from flowedge.models.copies import to_device, to_host
from flowedge.models.graphs.pieces import CapturingMaker, PieceMaker
from flowedge.models.graphs.shapes import row_bytes_with_scratch
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps
from flowedge.models.quant.quantize import module_bytes

_log = logging.getLogger(__name__)

SCRATCH_ROWS = 512  # rows for the nodes of a growth; a larger growth enlarges the store


@dataclass(kw_only=True)
class _HeadSession(ModelSession):
    """A session whose store has a row for each true row, then rows for the nodes of a growth.

    Attributes:
        scratch_rows: the number of rows of the growth.
    """

    store: HeadStore
    true_rows: int = 0
    scratch_rows: int = 0

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.store.states[start:stop]

    def truncate(self, rows: int) -> None:
        self.true_rows, self.root = rows, None
        if self.seen is not None:
            self.seen.truncate(rows)

    def discard_growth(self) -> None:
        super().discard_growth()
        self.scratch_rows = 0


class HeadDrafter(ModelDrafter[_HeadSession]):
    """A Drafter that predicts the target's states; only true states are kept beyond a growth."""

    needs_features = True

    def __init__(
        self,
        head: DraftHead,
        lm_head: LMHead,
        embedding: nn.Embedding,
        taps: Taps = (),
        recalls: bool = False,
        proposals: ProposalHead | None = None,
    ) -> None:
        """Draft with a head for the target whose LM head is `lm_head`.

        Args:
            embedding: the target's embedding, or the head's own.
            taps: the target's layers whose inputs the head reads.
            recalls: whether predictions are corrected by the head's own errors (see recall.py); possible for
                EAGLE-1/2 heads, which predict the same states that they read.
            proposals: over `lm_head`, which it replaces; for heads without an LM head of their own.
        """
        super().__init__(proposals or ProposalHead(lm_head))
        self.head = head
        self.taps = taps
        self._embedding = embedding
        norm = next(parameter for parameter in head.parameters() if parameter.ndim == 1)  # never quantised
        self._sizes = HeadSizes.of(head.config, norm.dtype, norm.device, recalls)
        self.device = norm.device
        vocabulary = head.vocabulary
        self._columns = None if vocabulary is None else to_device(self.device, vocabulary)[0]
        self._decoding: HeadDecoding | None = None
        self._native: NativeEagle | None = None
        if isinstance(head, EagleHead) and not not_native_reason(head):
            self._native = NativeEagle(head)

    def decode_statically(self, maker: PieceMaker, *, uncaptured: int = 1) -> None:
        """Compute small forwards of later sessions over static tensors; `uncaptured` as in HeldForwards."""
        own = None if self._columns is None else len(self._columns)
        modules = HeadModules(self.head, self._proposals, self._embedding, own)
        self._decoding = HeadDecoding(modules, self._sizes, maker, uncaptured=uncaptured)

    @property
    def decoding_failure(self) -> str:
        """Why the device cannot record forwards; empty as long as it can, and where none are recorded."""
        return "" if self._decoding is None else self._decoding.failure

    @property
    def decoding_bytes(self) -> int:
        """The bytes of static tensors, and of stores that wait for the next session."""
        return 0 if self._decoding is None else self._decoding.nbytes

    @property
    def can_learn(self) -> bool:
        return self._columns is None

    @property
    def weight_bytes(self) -> int:
        shared = {id(parameter) for parameter in (*self.head.parameters(), self._proposals.exact.weight)}
        own = 0 if id(self._embedding.weight) in shared else module_bytes(self._embedding)
        return module_bytes(self.head) + own + self._proposals.copied_bytes

    @property
    def fingerprint(self) -> str:
        recalled = "+recall" if self._sizes.recalls else ""
        return self._digest + recalled + self._proposals.fingerprint

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.head.state_dict().items()):
            (content,) = to_host(tensor)
            digest.update(name.encode() + content.tobytes())
        return digest.hexdigest()

    def session_bytes(self, capacity: int) -> int:
        row = (
            self._sizes.row_bytes if self._decoding is None else row_bytes_with_scratch(self._sizes.row_bytes)
        )
        return (capacity + SCRATCH_ROWS) * row + self._proposals.session_bytes

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,  # noqa: ARG002 (true rows begin with the second)
        noise: SamplingParams | None = None,
    ) -> None:
        rows, decoding = capacity + SCRATCH_ROWS, self._decoding
        store = HeadStore(self._sizes, rows) if decoding is None else decoding.store_for(rows)
        seen = seen_by(self._proposals)
        self._sessions[session] = _HeadSession(capacity=capacity, noise=noise, store=store, seen=seen)

    def close(self, session: str) -> None:
        state = self._sessions.get(session)
        super().close(session)
        if state is not None and self._decoding is not None:
            self._decoding.give_back(state.store)
        self._rest()

    def free_idle(self) -> None:
        if self._decoding is not None:
            self._decoding.free()

    @torch.inference_mode()
    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        if features is None:
            raise ValueError("an EAGLE head drafts from features")
        state = self._with_capacity(session, len(next_tokens))
        state.discard_growth()
        if not len(next_tokens):
            return
        rows = TrueRows.at(state.true_rows, features, np.asarray(next_tokens))
        self._note(state, rows.first, rows.tokens)
        if self._decoding is None or not self._decoding.extend(state.store, rows):
            self._extend(state.store, rows)
        state.true_rows = rows.stop
        state.root = GrownNode(rows.stop - 1, rows.stop + 1)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head.draft_logits(hidden, self._proposals)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._proposals.ids if self._columns is None else self._columns

    def _compute(self, state: _HeadSession, frontier: Frontier) -> tuple[torch.Tensor, torch.Tensor | None]:
        if list(frontier.nodes) == [ROOT]:  # predicted by the last true row
            return state.store.states[state.true_rows - 1 : state.true_rows], None
        parents = state.parents(frontier.parents)
        rows = GrownRows.below(
            state.true_rows + state.scratch_rows,
            state.true_rows,
            [parent.path for parent in parents],
            frontier.tokens,
        )
        self._make_room(state, rows.stop)
        logits = None if self._decoding is None else self._decoding.grow(state.store, rows)
        if logits is None:
            self._grow(state.store, rows)
        state.scratch_rows += rows.count
        for row, (node, parent) in enumerate(zip(frontier.nodes, parents, strict=True), rows.first):
            state.nodes[node] = GrownNode(row, parent.position + 1, (*parent.path, row))
        return state.store.states[rows.first : rows.stop], logits

    def _make_room(self, state: _HeadSession, stop: int) -> None:
        """Enlarge the store for a growth of more than SCRATCH_ROWS nodes."""
        if stop < state.store.rows:  # the last row is scratch
            return
        old, state.store = state.store, state.store.enlarged(2 * stop)
        if self._decoding is not None:
            self._decoding.give_back(old)

    def _extend(self, store: HeadStore, rows: TrueRows) -> None:
        """Compute true rows, and store what they predict."""
        features, tokens = to_device(self.device, rows.given, rows.tokens)
        given = self.head.true_states(features.to(self._sizes.dtype))
        if self._native is not None:
            predicted = self._native.predict(self._embedded(tokens), given, rows, store)
        else:
            positions = torch.arange(rows.first, rows.stop, device=self.device)
            mask = torch.arange(rows.stop, device=self.device)[None] <= positions[:, None]
            predicted = self._forward(store, tokens, given, positions, mask)
        if store.recall is not None:
            predicted = store.recall.extend(rows.first, given, predicted)
        store.states[rows.first : rows.stop] = predicted

    def _grow(self, store: HeadStore, rows: GrownRows) -> None:
        """Compute rows of a growth, and store what they predict."""
        if self._native is not None:
            tokens, before = to_device(self.device, rows.tokens, rows.before)
            states = store.states.index_select(0, before)
            predicted = self._native.predict(self._embedded(tokens), states, rows, store)
        else:
            predicted = self._masked(store, rows)
        if store.recall is not None:
            predicted = store.recall.corrected(predicted, rows.true_rows - 1)
        store.states[rows.first : rows.stop] = predicted

    def _masked(self, store: HeadStore, rows: GrownRows) -> torch.Tensor:
        """Compute rows of a growth by torch."""
        tokens, positions, before, seen = to_device(
            self.device, rows.tokens, rows.positions, rows.before, rows.seen
        )
        mask = torch.ones((rows.count, rows.stop), dtype=torch.bool, device=self.device)
        mask[:, rows.true_rows :] = seen
        return self._forward(store, tokens, store.states.index_select(0, before), positions, mask)

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._embedding(tokens)
        return embedded.to(self._sizes.dtype)

    def _forward(
        self,
        store: HeadStore,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        keys, values = store.kv[0, :, :, : mask.shape[1]]
        predicted: torch.Tensor = self.head(
            self._embedded(tokens), features, positions, KeyValueViews(keys, values), mask
        )
        return predicted


def capture_drafting(drafter: HeadDrafter) -> None:
    """Let a head on a GPU record its small forwards as CUDA graphs, if it can."""
    if drafter.device.type != "cuda":
        return
    if fixed_rope_length(drafter.head.config) is not None:
        _log.info("the draft head runs without CUDA graphs: its rotary angles are computed on the host")
        return
    drafter.decode_statically(CapturingMaker(drafter.device))
