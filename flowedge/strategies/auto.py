"""FlowEdge's own method: late binding of segments, drafting where it pays, scores that learn.

It is FlowSpec's continuous pipelining without its turns, and every decision aims at tokens revealed per time:

- Rows: a row is sent when the probability that its token is drawn is worth the time that it adds to the
  crossing of a segment (row_threshold). The best unsent nodes of the newest tree are taken.
- When: no more segments are under way than the pipeline has stages. One more would only wait in front of a
  stage, chosen on older news than the one that takes its place (late binding).
- Drafting: a forward of the drafter costs about the same for one node as for many, so each takes the
  likeliest nodes that are not drafted below yet, at whatever depth. Whether the next forwards begin anew at
  the root, with the target's true features, or go on at the frontier is decided by grows_anew.
- Candidates stay with their parents (CandidateTree), and what share of proposals comes true is learnt from
  the tokens drawn (Acceptance), so that scores are probabilities.
- After a miss the first layer of children is sent as soon as it is there: a crossing of the pipeline takes
  many times as long as a forward of the drafter, and what is drafted meanwhile follows at once. Where one
  row takes much less time than two (4-bit weights of bitsandbytes), the root goes alone before it
  (lone_root).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.acceptance import Acceptance
from flowedge.strategies.base import (
    Command,
    CreditGranted,
    Crossing,
    Emit,
    Event,
    Layer,
    Prefilled,
    Prune,
    Returned,
    Strategy,
    Verified,
)
from flowedge.strategies.candidate_tree import CandidateTree
from flowedge.strategies.crossing import CrossingEstimate
from flowedge.strategies.settings import AutoSettings
from flowedge.tree import ROOT, UNSENT


def row_threshold(row_share: float, price: float) -> float:
    """The least probability of acceptance at which a row is worth sending.

    A row prolongs the crossing of its segment by `row_share` of it, and so the time of the tokens that the
    segment reveals; if its token is drawn, it saves those that follow a crossing. With as many tokens on both
    sides, gain and loss are equal at a probability of `row_share`; `price` is a factor that was searched for.
    """
    return min(max(row_share * price, 1e-4), 0.2)


def grows_anew(tokens: int, stale_tokens: float) -> bool:
    """Whether to draft from the root again, `tokens` after the root of the last growth.

    The first forwards of a new growth only score anew what is known, with true features instead of the
    drafter's own; those at the frontier find new nodes. The gain in score rises with the tokens that were
    drawn since, the cost does not.
    """
    return tokens >= stale_tokens


class Auto(Strategy):
    """The tree of candidates, the segments under way, and what was learnt of both."""

    name: ClassVar[str] = "auto"

    def __init__(self, settings: AutoSettings) -> None:
        self._settings = settings
        acceptance = Acceptance(settings.prior)
        self._candidates = CandidateTree(settings.candidates, math.log(settings.least_node), acceptance)
        self._crossing = CrossingEstimate()
        self._limit = 1.0  # segments under way
        self._credits = 0
        self._flying = 0
        self._drafting = False
        self._at_root = False  # the layer that is drafted is the root's
        self._tokens = 0  # since the root of the growth

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    def handle(self, event: Event) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._limit = event.stages + self._settings.extra_segments
                self._crossing.observe(event.crossings)
                self._begin(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = self._at_root = False
                self._candidates.take(event)
                return self._proceed()
            case Verified():
                self._came_back(event.crossing)
                return [*self._advance(event), *self._proceed()]
            case Returned():
                self._came_back(None)
                return self._proceed()
            case CreditGranted():
                self._credits += 1
                return self._proceed()

    def _came_back(self, crossing: Crossing | None) -> None:
        self._flying -= 1
        # A lone row is no measure of what rows add where it is sent alone because it is the cheaper.
        if crossing is not None and not (self._settings.lone_root and crossing.rows == 1):
            self._crossing.observe([crossing])

    def _begin(self, token: int, context: int) -> None:
        self._candidates.restart(token, context)
        self._drafting = self._at_root = False

    def _advance(self, event: Verified) -> list[Command]:
        candidates = self._candidates
        tree = candidates.tree
        path = [tree.node_of_row(row) for row in event.accepted]
        emitted = Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))
        root = candidates.follow(path, event.token)
        if root is None:
            self._begin(event.token, tree.context + len(path))
            return [emitted, Prune(event.accepted, None, ends_round=True)]
        row = int(tree.rows[root])
        candidates.reroot(root)
        self._tokens += len(path)
        # The forward over the root extends the drafter by all that was accepted until it runs.
        if self._at_root or grows_anew(self._tokens, self._settings.stale_tokens):
            candidates.regrow()
            self._drafting = self._at_root = False
        return [emitted, Prune(event.accepted, None if row == UNSENT else row, ends_round=False)]

    def _proceed(self) -> list[Command]:
        """Send what is worth it, and draft where it helps most."""
        commands: list[Command] = []
        candidates, settings = self._candidates, self._settings
        while self._credits and self._flying < self._limit:
            nodes = self._choose()
            if not nodes:
                break
            self._credits -= 1
            self._flying += 1
            commands.append(candidates.send(nodes))
        # Nothing is sent before the root is drafted below, however small a tree may be.
        has_room = len(candidates.tree) < settings.max_nodes or not candidates.drafted_layers
        if not self._drafting and has_room:
            grow = candidates.grow(settings.draft_nodes)
            if grow is not None:
                self._drafting, self._at_root = True, grow.nodes == (ROOT,)
                if self._at_root:
                    self._tokens = 0
                commands.append(grow)
        return commands

    def _choose(self) -> list[int]:
        """The nodes of the next segment, if there is anything worth sending; the root is in any case."""
        settings, tree = self._settings, self._candidates.tree
        if settings.lone_root and tree.rows[ROOT] == UNSENT:
            return [ROOT]
        if not self._candidates.drafted_layers:
            return []
        threshold = math.log(row_threshold(self._crossing.row_share, settings.row_price))
        room = settings.max_draft_rows - tree.num_sent
        return self._candidates.best_unsent(min(settings.segment_rows, room), threshold)
