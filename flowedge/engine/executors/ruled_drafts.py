"""Drafting along the rules of an answer: tokens that a grammar leaves no choice about cost no forward.

A node at which the grammar allows one token alone has this token as its child, and the drafter is not asked.
It computes such nodes only if a node below them is asked about. True rows wait likewise. At other nodes the
drafter's logits are changed as the target's are, so that no token is drafted that the grammar rules out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray, Payload
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import RuledPath
from flowedge.drafting.drafter import ROOT, DraftLayer, Frontier, GrowRequest, padded_layer
from flowedge.drafting.ranking import RULED_OUT
from flowedge.engine.executors.answer_rules import AnswerRules
from flowedge.engine.jobs import ExtendDraft, GrowDraft
from flowedge.models.sampling.path_rules import PathRules
from flowedge.text.grammar_compiler import GrammarCompiler

_log = logging.getLogger(__name__)

Children = list[tuple[int, float]]
TrueRows = tuple[Payload | None, IntArray]


@dataclass
class _Draft:
    """The drafting of a session with rules.

    Attributes:
        growth: number of the current growth; root: the answer up to its root.
        nodes: the name of each node's parent and the node's token.
        deferred: nodes that the drafter has not computed; in the order in which they were asked for.
        waiting: true rows that the drafter has not been given.
        for_lookup: the tokens after those that its next request has, in a growth that asks lookup alone; None
            where it has had them.
    """

    growth: int | None = None
    root: RuledPath | None = None
    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)
    deferred: list[int] = field(default_factory=list)
    waiting: list[TrueRows] = field(default_factory=list)
    for_lookup: IntArray | None = None

    def path_to(self, node: int) -> list[int]:
        """Return the tokens below the root, up to a node."""
        tokens: list[int] = []
        while node != ROOT:
            node, token = self.nodes[node]
            tokens.append(token)
        return tokens[::-1]

    def ancestors(self, nodes: Sequence[int]) -> list[int]:
        """Return the deferred nodes above nodes, in the order in which they were asked for."""
        above: set[int] = set()
        for node in nodes:
            name = node
            while name != ROOT:
                name = self.nodes[name][0]
                above.add(name)
        return [node for node in self.deferred if node in above and node not in nodes and node != ROOT]


@dataclass(frozen=True, eq=False)
class DraftPlan:
    """How a job of a session with rules is computed.

    Attributes:
        request: for the drafter; None where there is nothing to ask it.
        known: the children of each node of the job that need no drafter; None where they do.
        forced: how many of them are tokens that the grammar forces.
    """

    job: ExtendDraft | GrowDraft
    request: GrowRequest | None
    known: tuple[Children | None, ...] = ()
    forced: int = 0

    def layer(self, drafted: DraftLayer | None) -> DraftLayer | None:
        """Return the job's layer; `drafted` is what the drafter answers, for the job's own nodes last."""
        if isinstance(self.job, ExtendDraft):
            return None
        rows = iter(() if drafted is None else self._drafted_children(drafted))
        children = [next(rows) if known is None else known for known in self.known]
        layer = padded_layer(children)
        computed = self.request is not None
        return DraftLayer(layer.tokens, layer.log_probs, forced=self.forced, computed=computed)

    def _drafted_children(self, drafted: DraftLayer) -> list[Children]:
        """The children that the drafter proposes, without those that are ruled out."""
        assert self.request is not None and self.request.added is not None
        asked = sum(known is None for known in self.known)
        children: list[Children] = []
        for row in range(len(drafted.tokens) - asked, len(drafted.tokens)):
            pairs = zip(drafted.tokens[row].tolist(), drafted.log_probs[row].tolist(), strict=True)
            added = self.request.added[row]
            children.append([(t, p) for t, p in pairs if t >= 0 and added[t] > RULED_OUT])
        return children


class RuledDrafts:
    """The drafting of all sessions with rules that change draws.

    Attributes:
        forces_tokens: whether tokens that a grammar leaves no choice about are drafted without the drafter;
            measurements switch it off.
    """

    forces_tokens: ClassVar[bool] = True

    def __init__(self, grammars: GrammarCompiler | None, vocab_size: int) -> None:
        """`vocab_size` is the number of the target's logits."""
        self._rules = AnswerRules(grammars)
        self._vocab_size = vocab_size
        self._drafts: dict[str, _Draft] = {}

    def drop(self, session: str) -> None:
        """Free the state of a session, which may be unknown."""
        self._rules.drop(session)
        self._drafts.pop(session, None)

    def plan(self, job: ExtendDraft | GrowDraft) -> DraftPlan | None:
        """Return how a job is computed; None for one of a session without rules.

        The same job may be planned again. `done` is to be called when it is computed.
        """
        draft = self._drafts.get(job.session)
        if isinstance(job, ExtendDraft):
            if draft is None or not draft.waiting:
                return None
            rows = _joined([*draft.waiting, (job.features, job.next_tokens)])
            return DraftPlan(job, GrowRequest.extension(job.session, *rows))
        if draft is None and job.path is None:
            return None
        return self._plan_layer(job, self._begun(job))

    def done(self, plan: DraftPlan) -> None:
        """Take note that a plan was carried out."""
        job, draft = plan.job, self._drafts.get(plan.job.session)
        if draft is None:
            return
        if plan.request is not None:
            draft.for_lookup = None
            if not plan.request.lookup_alone:
                draft.waiting.clear()
            computed = set(plan.request.frontier.nodes)
            draft.deferred = [node for node in draft.deferred if node not in computed]
        elif isinstance(job, GrowDraft) and job.next_tokens is not None and not job.lookup_alone:
            draft.waiting.append((job.features, job.next_tokens))

    def waiting_rows(self, session: str) -> TrueRows | None:
        """Return the true rows that the drafter lacks, if there are any; `given` forgets them."""
        draft = self._drafts.get(session)
        return _joined(draft.waiting) if draft is not None and draft.waiting else None

    def given(self, session: str) -> None:
        """Take note that the drafter has been given the true rows that waited."""
        self._drafts[session].waiting.clear()

    def _begun(self, job: GrowDraft) -> _Draft:
        """Return a session's state after the nodes of a job are added; a new growth number begins anew."""
        draft = self._drafts.setdefault(job.session, _Draft())
        if job.path is not None:
            draft.root = job.path
        if job.growth != draft.growth:
            draft.growth = job.growth
            draft.nodes, draft.deferred, draft.for_lookup = {}, [], None
        for node, parent, token in zip(
            job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist(), strict=True
        ):
            if node != ROOT:
                draft.nodes[node] = parent, token
            if node not in draft.deferred:
                draft.deferred.append(node)
        return draft

    def _plan_layer(self, job: GrowDraft, draft: _Draft) -> DraftPlan:
        waiting = list(draft.waiting)
        if job.next_tokens is not None:
            waiting.append((job.features, job.next_tokens))
            if job.lookup_alone:
                draft.for_lookup = np.concatenate([tokens for _, tokens in waiting])
        known: list[Children | None] = []
        added = []
        forced = 0
        for node in job.nodes.tolist():
            children, change = self._rules_at(job.session, draft, node)
            known.append(children)
            forced += children is not None and len(children)
            if change is not None:
                added.append(change)
        if not added:
            return DraftPlan(job, None, tuple(known), forced)
        own = [n for n, children in zip(job.nodes.tolist(), known, strict=True) if children is None]
        above = draft.ancestors(own)
        nodes = above + own
        above_and_token = [
            draft.nodes.get(node, (-1, int(job.tokens[0]))) for node in nodes
        ]  # (-1, ...) of the root
        frontier = Frontier(
            nodes, [parent for parent, _ in above_and_token], [token for _, token in above_and_token]
        )
        rows: tuple[Payload | None, IntArray | None] = (None, draft.for_lookup)
        if waiting and not job.lookup_alone:
            rows = _joined(waiting)
        changes = np.zeros((len(nodes), self._vocab_size), dtype=np.float32)
        changes[len(above) :] = added
        request = GrowRequest(
            job.session, job.growth, frontier, job.width, *rows, changes, lookup_alone=job.lookup_alone
        )
        return DraftPlan(job, request, tuple(known), forced)

    def _rules_at(self, session: str, draft: _Draft, node: int) -> tuple[Children | None, FloatArray | None]:
        """The children of a node if no drafter is needed; otherwise what is added to its logits [vocab]."""
        assert draft.root is not None
        tokens = draft.path_to(node)
        try:
            path = self._rules.at(session, draft.root)
            for token in tokens:
                path.push(token)
            return self._children(path)
        except BadRequestError as error:  # the target's draws decide whether the answer can go on
            _log.debug("session %s: nothing is drafted below node %d: %s", session, node, error)
            self._rules.drop(session)
            return [], None

    def _children(self, path: PathRules) -> tuple[Children | None, FloatArray | None]:
        if path.ended:
            return [], None
        allowed = path.allowed()
        if self.forces_tokens and allowed is not None and np.count_nonzero(allowed) == 1:
            return [(int(np.argmax(allowed)), 0.0)], None
        added = np.zeros(self._vocab_size, dtype=np.float64)
        path.adjust(added)
        if allowed is not None:
            added[~allowed] = RULED_OUT
        return None, added


def _joined(rows: Sequence[TrueRows]) -> TrueRows:
    """Return rows, of which either all or none have features, as one."""
    features = [each for each, _ in rows if each is not None]
    return np.concatenate(features) if features else None, np.concatenate([tokens for _, tokens in rows])
