"""Drafters over a model, which predict a distribution over the target's tokens for each node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.draft_vocabulary import VocabularyLearner
from flowedge.drafting.drafter import (
    ROOT,
    Drafter,
    DrafterSession,
    DraftLayer,
    Frontier,
    GrowRequest,
    SessionDrafter,
    check_requests,
)
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.drafting.ranking import RankedNodes, ranked, with_added
from flowedge.drafting.seen_tokens import SeenTokens, seen_by
from flowedge.models.host.copies import to_device


@dataclass(frozen=True, eq=False)
class Prediction:
    """The tokens that follow each of f tokens.

    Attributes:
        logits: [f, columns].
        positions: the f absolute positions of the predicted tokens.
        ids: int64 [columns] on the logits' device, the target's token of each column; None where columns are
            token ids.
    """

    logits: torch.Tensor
    positions: list[int]
    ids: torch.Tensor | None = None


@dataclass(frozen=True)
class TrueSpan:
    """The true rows [start, stop) of a session."""

    session: str
    start: int
    stop: int


class Predictor(Drafter, Protocol):
    """A Drafter with the predictions of a ModelDrafter."""

    @property
    def draft_tokens(self) -> int: ...

    def predict(self, requests: Sequence[GrowRequest]) -> list[Prediction]: ...

    def predict_true(self, spans: Sequence[TrueSpan]) -> list[Prediction]: ...


@dataclass(frozen=True)
class GrownNode:
    """A computed node of a growth.

    Attributes:
        row: the row whose state predicts the node's children.
        position: the absolute position of the node's children.
        path: the rows of the node and its ancestors below the root; empty for the root.
    """

    row: int
    position: int
    path: tuple[int, ...] = ()

    def child(self, row: int) -> GrownNode:
        """A child of this node, with its row."""
        return GrownNode(row, self.position + 1, (*self.path, row))


@dataclass(kw_only=True)
class ModelSession(DrafterSession):
    """A session whose cache has a row for each true row, then rows for the nodes of a growth.

    Attributes:
        tokens: the token of each true row.
        seen: the text's tokens that the drafter's vocabulary lacks; None where it lacks none.
        drafts: whether a tree was grown; all later tokens were drawn by the target.
        root: the node of the last known token; None before the next extension.
        nodes: the computed nodes of the growth, by name.
    """

    tokens: list[int] = field(default_factory=list)
    seen: SeenTokens | None = None
    drafts: bool = False
    root: GrownNode | None = None
    nodes: dict[int, GrownNode] = field(default_factory=dict)

    @property
    def known_nodes(self) -> Collection[int]:
        return self.nodes.keys()

    @property
    @abstractmethod
    def states(self) -> torch.Tensor:
        """The states [rows, hidden] of all rows of the cache."""

    @abstractmethod
    def predictors(self, start: int, stop: int) -> torch.Tensor:
        """The states [stop - start, hidden] whose logits predict the tokens after true rows [start, stop)."""

    def truncate(self, rows: int) -> None:
        del self.tokens[rows:]
        self.root = None
        if self.seen is not None:
            self.seen.truncate(rows)

    def has_root_after(self, request: GrowRequest) -> bool:
        """Whether the session has a root once it is extended as a request asks for."""
        return self.root is not None or request.added_rows > 0

    def states_of(self, nodes: Sequence[int]) -> torch.Tensor:
        """The states [f, hidden] that predict the children of f computed nodes."""
        return rows_of(self.states, [self.nodes[node].row for node in nodes])

    def discard_growth(self) -> None:
        super().discard_growth()
        self.nodes = {}

    def positions_of(self, nodes: Sequence[int]) -> list[int]:
        """The absolute positions of the children of f computed nodes."""
        return [self.nodes[node].position for node in nodes]

    def known(self, name: int) -> GrownNode:
        """The computed node with a name. ValueError where there is none."""
        node = self.nodes.get(name)
        if node is None:
            raise ValueError(f"node {name} is not of growth {self.growth}")
        return node


M = TypeVar("M", bound=ModelSession)


class ModelDrafter(SessionDrafter[M]):
    """What drafters over a model have in common: it turns a model's hidden states into children."""

    def __init__(self, proposals: ProposalHead) -> None:
        super().__init__()
        self._proposals = proposals
        self._learner: VocabularyLearner | None = None

    @property
    def draft_tokens(self) -> int:
        """The number of tokens that it proposes in every session."""
        return self._proposals.columns if self._ids is None else len(self._ids)

    @property
    def can_learn(self) -> bool:
        """Whether the drafter has no vocabulary of its own."""
        return True

    def learn_by(self, learner: VocabularyLearner) -> None:
        """Give a learner the tokens that are drawn from now on, and propose what it chooses."""
        self._learner = learner

    @abstractmethod
    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [f, columns] of hidden states [f, hidden]."""

    @property
    def _ids(self) -> torch.Tensor | None:
        return None

    @abstractmethod
    def _compute(
        self, extended: Sequence[tuple[M, GrowRequest]], grown: Sequence[tuple[M, Frontier]]
    ) -> None:
        """Extend sessions by true rows, and add frontiers' nodes to the nodes of other sessions.

        All rows are computed in one forward. After an error, an extended session may have some of its new
        rows; all others are unchanged.
        """

    def check_request(self, request: GrowRequest) -> None:
        super().check_request(request)
        if len(request.frontier.nodes) and not self._sessions[request.session].has_root_after(request):
            raise ValueError(f"session {request.session} has no true row to draft from")

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        check_requests(self.check_request, requests)
        with self._rows_taken_back(requests):
            found = self.predict(requests)
            return ranked(
                [
                    RankedNodes(
                        with_added(each.logits, each.ids, request.added),
                        request.width,
                        self._noise(request),
                        each.positions,
                        each.ids,
                    )
                    for request, each in zip(requests, found, strict=True)
                ]
            )

    @torch.inference_mode()
    def predict(self, requests: Sequence[GrowRequest]) -> list[Prediction]:
        """The tokens that follow the nodes of each request; arguments and errors as in Drafter.grow.

        The logits of a request without nodes have no rows.
        """
        check_requests(self.check_request, requests)
        asked = [(self._sessions[request.session], request) for request in requests]
        with self._rows_taken_back(requests):
            self._compute_all(asked)
            return self._below([(state, request.frontier) for state, request in asked])

    def _below(self, asked: Sequence[tuple[M, Frontier]]) -> list[Prediction]:
        """The tokens that follow computed nodes of sessions."""
        return self._predictions(
            [(state, state.states_of(each.nodes), state.positions_of(each.nodes)) for state, each in asked]
        )

    @contextmanager
    def _rows_taken_back(self, requests: Sequence[GrowRequest]) -> Iterator[None]:
        """After an error, forget the rows that requests, which can be served, have added."""
        before = {
            each.session: self._sessions[each.session].true_rows for each in requests if each.added_rows
        }
        try:
            yield
        except Exception:
            for session, rows in before.items():
                self.rewind(session, rows)
            raise

    @torch.inference_mode()
    def predict_true(self, spans: Sequence[TrueSpan]) -> list[Prediction]:
        """The tokens that follow true rows, as predicted when these rows were added."""
        return self._predictions(
            [
                (state, state.predictors(span.start, span.stop), list(range(span.start + 2, span.stop + 2)))
                for span in spans
                for state in (self._sessions[span.session],)
            ]
        )

    def _compute_all(self, asked: Sequence[tuple[M, GrowRequest]]) -> None:
        """Extend the sessions, and compute the nodes of all frontiers.

        The nodes of an extended session are below its new root, so they take another forward; a frontier
        that is the root alone has no row.
        """
        extended = [(state, request) for state, request in asked if request.next_tokens is not None]
        grown = [
            (state, request.frontier)
            for state, request in asked
            if request.next_tokens is None and self._begins(state, request)
        ]
        if extended or grown:
            self._compute(extended, grown)
        below = [(state, request.frontier) for state, request in extended if self._begins(state, request)]
        if below:
            self._compute([], below)

    def _begins(self, state: M, request: GrowRequest) -> bool:
        """Begin the growth of a request unless it is the current one; return whether it has rows."""
        if not len(request.frontier.nodes):
            return False
        if request.growth != state.growth:
            state.discard_growth()
            assert state.root is not None, "as checked"
            state.growth, state.drafts = request.growth, True
            state.nodes[ROOT] = state.root
        return list(request.frontier.nodes) != [ROOT]

    def _noise(self, request: GrowRequest) -> SamplingParams | None:
        return self._sessions[request.session].noise

    def keep(self, session: str) -> None:
        super().keep(session)
        state = self._kept.get(session)
        if state is not None:
            state.seen = None  # another vocabulary may be chosen before a prefix is copied
        self._rest()

    def _note(self, state: M, first_row: int, tokens: IntArray) -> None:
        """Note the tokens of true rows from `first_row` on."""
        state.tokens += tokens.tolist()
        if state.seen is not None:
            state.seen.add(first_row, tokens)
        if self._learner is not None and state.drafts:
            self._learner.add(tokens)

    def _rest(self) -> None:
        """Do what has to wait until no session is open."""
        if self._learner is None or self._sessions or not self._learner.rest():
            return
        self.free_idle()
        self._proposals.copy(self._learner.vocabulary)

    def _copy_tokens(self, state: M, source: M | None, rows: int) -> None:
        """Begin a session with the tokens of the first rows of another."""
        state.seen = seen_by(self._proposals)
        if source is not None:
            state.tokens = source.tokens[:rows]
            if state.seen is not None:
                state.seen.add(0, np.array(state.tokens, dtype=np.int64))

    def _predictions(self, asked: Sequence[tuple[M, torch.Tensor, list[int]]]) -> list[Prediction]:
        """The tokens that states [f, hidden] of sessions predict at f positions, by one product."""
        if not asked:
            return []
        every = [states for _, states, _ in asked]
        joined = every[0] if len(every) == 1 else torch.cat(every)
        product = self._logits(joined) if len(joined) else joined
        logits = torch.split(product, [len(states) for states in every])
        return [
            self._prediction(state, states, positions, own)
            for (state, states, positions), own in zip(asked, logits, strict=True)
        ]

    def _prediction(
        self, state: M, states: torch.Tensor, positions: list[int], logits: torch.Tensor
    ) -> Prediction:
        """The tokens that states [f, hidden] with these logits predict."""
        if state.seen is None or not state.seen.count or not len(states):
            return Prediction(logits, positions, self._ids)
        return Prediction(torch.cat((logits, state.seen.logits(states)), dim=1), positions, state.seen.ids)


def rows_of(states: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the rows [n, hidden] with these numbers; a view where they follow one another."""
    first = rows[0] if rows else 0
    if list(rows) == list(range(first, first + len(rows))):
        return states[first : first + len(rows)]
    (index,) = to_device(states.device, np.array(rows))
    return states.index_select(0, index)
