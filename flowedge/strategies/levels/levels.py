"""A speculative tree that goes through the pipeline level by level: what PipeDec and SpecPipe share.

One level a step: while the stages compute on the levels before it, the draft model proposes children for the
newest level, and the `width` best of them are the next. A level that comes back is the root alone, everything
beside it having been pruned, and gives one token: the tree is pruned to the subtree of that token (a hit), or
begins anew with it (a miss).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.tree import UNSENT
from flowedge.strategies.base import (
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Layer,
    Prefilled,
    Returned,
    Strategy,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.live_tree import Candidates, LiveTree
from flowedge.strategies.settings import LevelSettings
from flowedge.strategies.turn_gate import TurnGate


class LevelByLevel(Strategy):
    """The tree, whose levels are sent as they are drafted, and the steps."""

    def __init__(self, settings: LevelSettings) -> None:
        self._settings = settings
        self._live = LiveTree()
        self._pace = TurnGate(1, 0)
        self._drafting = False

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._pace = TurnGate(event.stages, event.credits)
                self._begin(event.token, event.context)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._drafting = False
                self._live.take(event)
                return self._proceed()
            case Verified():
                self._pace.take_back()
                return self._advance(event)
            case Returned():
                return self._proceed() if self._pace.take_back() else []
            case CreditGranted():
                self._pace.grant()
                return self._proceed()

    def _begin(self, token: int, context: int) -> None:
        """The tree is a root alone, and a level by itself."""
        self._pace.flush()
        self._live.restart(token, context)
        self._drafting = False

    def _advance(self, event: Verified) -> list[Command]:
        live, tree = self._live, self._live.tree
        path = [tree.node_of_row(row) for row in event.accepted]
        emitted = Emit((*(int(tree.tokens[node]) for node in path[1:]), event.token))
        if path[-1] in live.deepest():
            self._append_level()
        hit = tree.child(path[-1], event.token)
        if hit is None:
            self._begin(event.token, tree.context + len(path))
            return [emitted, AcceptPath(event.accepted, None, ends_round=True), *self._proceed()]
        row = int(tree.rows[hit])
        live.reroot(hit)
        if row == UNSENT:
            self._pace.flush()
        prune = AcceptPath(event.accepted, None if row == UNSENT else row, ends_round=False)
        return [emitted, prune, *self._proceed()]

    def _proceed(self) -> list[Command]:
        """Send the levels there are turns for, and have the next drafted."""
        live = self._live
        commands: list[Command] = []
        while self._pace.may_send:
            room = self._settings.max_draft_rows - live.tree.num_sent
            level = (live.unsent() or self._append_level())[: max(room, 0)]
            if not level:
                break
            self._pace.send()
            commands.append(live.send(level))
        bare = [node for node in live.deepest() if live.candidates(node) is None]
        if bare and not self._drafting:
            self._drafting = True
            commands.append(live.grow(bare, self._settings.children))
        return commands

    def _append_level(self) -> list[int]:
        """The level below the deepest: the candidates with the best cumulative scores, once all are known.

        They are chosen as late as can be, when the level is due and the tree has been pruned: so the level
        has its full width within the subtree that lives.
        """
        live, frontier = self._live, self._live.deepest()
        known: list[Candidates] = [c for node in frontier if (c := live.candidates(node)) is not None]
        if len(known) < len(frontier):
            return []
        parents = np.repeat(frontier, [len(c.tokens) for c in known])
        tokens = np.concatenate([c.tokens for c in known])
        log_probs = np.concatenate([c.log_probs for c in known])
        best = np.argsort(-(live.tree.scores[parents] + log_probs), kind="stable")[: self._settings.width]
        return live.add(parents[best].tolist(), tokens[best].tolist(), log_probs[best].tolist())
