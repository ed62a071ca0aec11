"""Drafting with an EAGLE head over the target's hidden states."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Frontier, GrowRequest
from flowedge.drafting.heads.draft_head import StepHead
from flowedge.drafting.heads.head_decoding import HeadDecoding
from flowedge.drafting.heads.head_forward import HeadForward, StoredRows
from flowedge.drafting.heads.head_rows import GrownRows, TrueRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.drafting.heads.static_head import HeadModules
from flowedge.drafting.heads.store_drafter import StoreDrafter, StoreSession
from flowedge.drafting.model_drafter import GrownNode, Prediction
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.cuda_graphs.recording import CapturingMaker, RecordingMaker
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import Taps

_log = logging.getLogger(__name__)

SCRATCH_ROWS = 512  # rows for the nodes of a growth; a larger growth enlarges the store


@dataclass(kw_only=True)
class _HeadSession(StoreSession):
    """A session whose store has a row for each true row, then rows for the nodes of a growth.

    Attributes:
        scratch_rows: the number of rows of the growth.
    """

    scratch_rows: int = 0

    def set_true_rows(self, rows: int) -> None:
        self.true_rows = rows
        self.root = GrownNode(rows - 1, rows + 1)

    def grown_rows(self, frontier: Frontier) -> GrownRows:
        """The rows of a frontier's nodes behind those of the growth."""
        first = self.true_rows + self.scratch_rows
        below: dict[int, GrownNode] = {}
        paths: list[tuple[int, ...]] = []
        for row, (node, parent) in enumerate(zip(frontier.nodes, frontier.parents, strict=True), first):
            above = below[parent] if parent in below else self.known(parent)
            below[node] = above.child(row)
            paths.append(above.path)
        return GrownRows.below(first, self.true_rows, paths, frontier.tokens)

    def add_grown(self, frontier: Frontier, rows: GrownRows) -> None:
        """Add the nodes of a frontier, whose rows are stored."""
        self.scratch_rows += rows.count
        for row, (node, parent) in enumerate(zip(frontier.nodes, frontier.parents, strict=True), rows.first):
            self.nodes[node] = self.nodes[parent].child(row)

    def discard_growth(self) -> None:
        super().discard_growth()
        self.scratch_rows = 0


class HeadDrafter(StoreDrafter[_HeadSession]):
    """A Drafter that predicts the target's states; only true states are kept beyond a growth."""

    def __init__(
        self,
        head: StepHead,
        lm_head: LMHead,
        embedding: nn.Embedding,
        taps: Taps = (),
        recalls: bool = False,
        proposals: ProposalHead | None = None,
    ) -> None:
        """Draft with a head; arguments as of StoreDrafter.

        recalls: whether predictions are corrected by the head's own errors (see recall.py); possible for
            EAGLE-1/2 heads, which predict the same states that they read.
        """
        super().__init__(head, lm_head, embedding, taps, proposals, recalls=recalls)
        self.head = head
        self._decoding: HeadDecoding | None = None
        self._forward = HeadForward(head, embedding, self._sizes)

    def decode_statically(self, maker: RecordingMaker, *, uncaptured: int = 1) -> None:
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

    def session_bytes(self, capacity: int) -> int:
        row = (
            self._sizes.row_bytes if self._decoding is None else row_bytes_with_scratch(self._sizes.row_bytes)
        )
        return (capacity + SCRATCH_ROWS) * row + self._proposals.session_bytes

    @property
    def _draft_rows(self) -> int:
        return SCRATCH_ROWS

    def _new_store(self, rows: int) -> HeadStore:
        return super()._new_store(rows) if self._decoding is None else self._decoding.store_for(rows)

    def _new_session(
        self, capacity: int, first_token: int, noise: SamplingParams | None, store: HeadStore
    ) -> _HeadSession:
        return _HeadSession(capacity=capacity, first_token=first_token, noise=noise, store=store)

    def _take_back(self, store: HeadStore) -> None:
        if self._decoding is not None:
            self._decoding.give_back(store)

    def free_idle(self) -> None:
        if self._decoding is not None:
            self._decoding.free()

    @torch.inference_mode()
    def predict(self, requests: Sequence[GrowRequest]) -> list[Prediction]:
        if len(requests) == 1 and self._decoding is not None and requests[0].next_tokens is None:
            found = self._predict_statically(requests[0], self._decoding)
            if found is not None:
                return [found]
        return super().predict(requests)

    def _predict_statically(self, request: GrowRequest, decoding: HeadDecoding) -> Prediction | None:
        """Predict by a static forward, which ends with the logits; None when it is not a static one."""
        self.check_request(request)
        state, frontier = self._sessions[request.session], request.frontier
        if not self._begins(state, request):
            return None
        rows = state.grown_rows(frontier)
        self._free_rows(state, rows.stop)
        logits = decoding.grow(state.store, rows)
        if logits is None:
            return None
        state.add_grown(frontier, rows)
        states = state.store.states[rows.first : rows.stop]
        return self._prediction(state, states, state.positions_of(frontier.nodes), logits)

    def _compute(
        self,
        extended: Sequence[tuple[_HeadSession, GrowRequest]],
        grown: Sequence[tuple[_HeadSession, Frontier]],
    ) -> None:
        true_rows = self._true_rows(extended)
        grown_rows = [(state, frontier, state.grown_rows(frontier)) for state, frontier in grown]
        for state, _, below in grown_rows:
            self._free_rows(state, below.stop)
        parts = [StoredRows(state.store, rows) for state, rows in true_rows]
        parts += [StoredRows(state.store, rows) for state, _, rows in grown_rows]
        self._compute_parts(parts)
        for state, rows in true_rows:
            state.set_true_rows(rows.stop)
        for state, frontier, below in grown_rows:
            state.add_grown(frontier, below)

    def _compute_parts(self, parts: Sequence[StoredRows]) -> None:
        """Compute rows, and store what they predict, as a static forward for true rows of one session."""
        if len(parts) == 1 and self._decoding is not None:
            store, rows = parts[0].store, parts[0].rows
            if isinstance(rows, TrueRows) and self._decoding.extend(store, rows):
                return
        if parts:
            self._forward.compute(parts)

    def _free_rows(self, state: _HeadSession, stop: int) -> None:
        """Enlarge the store for a growth of more than SCRATCH_ROWS nodes."""
        if stop < state.store.rows:  # the last row is scratch
            return
        old, state.store = state.store, state.store.enlarged(2 * stop)
        if self._decoding is not None:
            self._decoding.give_back(old)


def capture_drafting(drafter: HeadDrafter) -> None:
    """Let a head on a GPU record its small forwards as CUDA graphs, if it can."""
    if drafter.device.type != "cuda":
        return
    if not drafter.head.is_recordable:
        _log.info("the draft head runs without CUDA graphs: its rotary angles or experts need the host")
        return
    drafter.decode_statically(CapturingMaker(drafter.device))
