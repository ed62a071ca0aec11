"""Drafters over a model, which predict a distribution over the target's tokens for each node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.drafting.drafter import ROOT, Drafter, DrafterSession, DraftLayer, Frontier, SessionDrafter
from flowedge.drafting.ranking import ranked
from flowedge.drafting.vocabulary.learner import VocabularyLearner
from flowedge.drafting.vocabulary.proposal_head import ProposalHead
from flowedge.drafting.vocabulary.seen_tokens import SeenTokens
from flowedge.models.copies import to_device


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


class Predictor(Drafter, Protocol):
    """A Drafter with the predictions of a ModelDrafter."""

    @property
    def draft_tokens(self) -> int: ...

    def predict(self, session: str, growth: int, frontier: Frontier) -> Prediction: ...

    def predict_true(self, session: str, start: int, stop: int) -> Prediction: ...


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


@dataclass(kw_only=True)
class ModelSession(DrafterSession):
    """A session whose cache has a row for each true row, then rows for the nodes of a growth.

    Attributes:
        seen: the text's tokens that the drafter's vocabulary lacks; None where it lacks none.
        drafts: whether a tree was grown; all later tokens were drawn by the target.
        root: the node of the last known token; None before the next extension.
        nodes: the computed nodes of the growth, by name.
    """

    seen: SeenTokens | None = None
    drafts: bool = False
    root: GrownNode | None = None
    nodes: dict[int, GrownNode] = field(default_factory=dict)

    @abstractmethod
    def predictors(self, start: int, stop: int) -> torch.Tensor:
        """The states [stop - start, hidden] whose logits predict the tokens after true rows [start, stop)."""

    def discard_growth(self) -> None:
        super().discard_growth()
        self.nodes = {}

    def parents(self, names: Sequence[int]) -> list[GrownNode]:
        missing = set(names) - self.nodes.keys()
        if missing:
            raise ValueError(f"nodes {sorted(missing)} are not of growth {self.growth}")
        return [self.nodes[name] for name in names]


M = TypeVar("M", bound=ModelSession)


class ModelDrafter(SessionDrafter[M]):
    """The part of a Drafter that turns a model's hidden states into children."""

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
    def _compute(self, state: M, frontier: Frontier) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Add a frontier's f nodes to the session's nodes.

        Returns:
            The states [f, hidden] that predict their children; and the states' logits [f, columns] where they
            are computed already.
        """

    @abstractmethod
    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [f, columns] of hidden states [f, hidden]."""

    @property
    def _ids(self) -> torch.Tensor | None:
        return None

    def grow(self, session: str, growth: int, frontier: Frontier, width: int) -> DraftLayer:
        found = self.predict(session, growth, frontier)
        return ranked(found.logits, width, self._sessions[session].noise, found.positions, found.ids)

    @torch.inference_mode()
    def predict(self, session: str, growth: int, frontier: Frontier) -> Prediction:
        """The tokens that follow each frontier node; arguments and errors as in Drafter.grow."""
        state = self._sessions[session]
        if growth != state.growth:
            state.discard_growth()
            if state.root is None:
                raise ValueError(f"session {session} has no true row to draft from")
            state.growth = growth
            state.nodes[ROOT] = state.root
            state.drafts = True
        states, logits = self._compute(state, frontier)
        positions = [state.nodes[node].position for node in frontier.nodes]
        return self._prediction(state, states, positions, logits)

    @torch.inference_mode()
    def predict_true(self, session: str, start: int, stop: int) -> Prediction:
        """The tokens that follow true rows [start, stop), as predicted when those rows were added."""
        state = self._sessions[session]
        # True row t stands for token[t + 1], so the token after it is token[t + 2].
        return self._prediction(state, state.predictors(start, stop), list(range(start + 2, stop + 2)))

    def _note(self, state: M, first_row: int, tokens: IntArray) -> None:
        """Note the tokens of true rows from `first_row` on."""
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

    def _prediction(
        self, state: M, states: torch.Tensor, positions: list[int], logits: torch.Tensor | None = None
    ) -> Prediction:
        """The tokens that states [f, hidden] predict; `logits` of these states where they are known."""
        if logits is None:
            logits = self._logits(states)
        if state.seen is None or not state.seen.count:
            return Prediction(logits, positions, self._ids)
        return Prediction(torch.cat((logits, state.seen.logits(states)), dim=1), positions, state.seen.ids)


def rows_of(states: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the rows [n, hidden] with these numbers; a view where they follow one another."""
    first = rows[0]
    if list(rows) == list(range(first, first + len(rows))):
        return states[first : first + len(rows)]
    (index,) = to_device(states.device, np.array(rows))
    return states.index_select(0, index)
