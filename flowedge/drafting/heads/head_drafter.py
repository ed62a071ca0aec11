"""Drafting with an EAGLE head over the target's hidden states."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import DraftPrefix, Frontier, GrowRequest
from flowedge.drafting.heads.draft_head import DraftHead
from flowedge.drafting.heads.head_decoding import HeadDecoding
from flowedge.drafting.heads.head_forward import HeadForward, StoredRows
from flowedge.drafting.heads.head_rows import GrownRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.static_head import HeadModules
from flowedge.drafting.model_drafter import GrownNode, ModelDrafter, ModelSession, Prediction
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.cuda_graphs.recording import CapturingMaker, RecordingMaker
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import module_bytes
from flowedge.models.taps import Taps

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

    @property
    def states(self) -> torch.Tensor:
        return self.store.states

    def predictors(self, start: int, stop: int) -> torch.Tensor:
        return self.store.states[start:stop]

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self.true_rows = rows

    def set_true_rows(self, rows: int) -> None:
        """Count true rows, which are stored; the last of them predicts the root's children."""
        self.true_rows = rows
        self.root = GrownNode(rows - 1, rows + 1)

    def grown_rows(self, frontier: Frontier) -> GrownRows:
        """The rows of a frontier's nodes behind those of the growth."""
        first = self.true_rows + self.scratch_rows
        below: dict[int, GrownNode] = {}
        paths: list[tuple[int, ...]] = []
        for row, (node, parent) in enumerate(zip(frontier.nodes, frontier.parents, strict=True), first):
            above = below[parent] if parent in below else self.parents([parent])[0]
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
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
    ) -> None:
        source, copied = self._source(prefix, capacity, first_token)
        rows, decoding = capacity + SCRATCH_ROWS, self._decoding
        store = HeadStore(self._sizes, rows) if decoding is None else decoding.store_for(rows)
        state = _HeadSession(capacity=capacity, first_token=first_token, noise=noise, store=store)
        self._copy_tokens(state, source, copied)
        if source is not None:
            store.copy_rows(source.store, copied)
            state.set_true_rows(copied)
        self._begin(session, state)

    def close(self, session: str) -> None:
        state = self._sessions.get(session) or self._kept.get(session)
        super().close(session)
        if state is not None and self._decoding is not None:
            self._decoding.give_back(state.store)
        self._rest()

    def free_idle(self) -> None:
        if self._decoding is not None:
            self._decoding.free()

    def check_request(self, request: GrowRequest) -> None:
        super().check_request(request)
        if request.next_tokens is not None and request.features is None:
            raise ValueError(f"session {request.session}: an EAGLE head drafts from features")

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

    def _true_rows(self, state: _HeadSession, features: Payload, next_tokens: IntArray) -> TrueRows | None:
        """Note tokens that follow the text, and return their rows, if there are any."""
        state.discard_growth()
        if not len(next_tokens):
            return None
        rows = TrueRows.at(state.true_rows, features, np.asarray(next_tokens))
        self._note(state, rows.first, rows.tokens)
        return rows

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head.draft_logits(hidden, self._proposals)

    @property
    def _ids(self) -> torch.Tensor | None:
        return self._proposals.ids if self._columns is None else self._columns

    def _compute(
        self,
        extended: Sequence[tuple[_HeadSession, GrowRequest]],
        grown: Sequence[tuple[_HeadSession, Frontier]],
    ) -> None:
        true_rows: list[tuple[_HeadSession, TrueRows]] = []
        for state, request in extended:
            assert request.features is not None and request.next_tokens is not None, "as checked"
            rows = self._true_rows(state, request.features, request.next_tokens)
            if rows is not None:
                true_rows.append((state, rows))
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
