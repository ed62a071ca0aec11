"""Naive pipeline parallelism: draft a tree, verify it, repeat (flowspec, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.base import (
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Grow,
    Layer,
    Prefilled,
    Returned,
    Send,
    Strategy,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.growth import Growth
from flowedge.strategies.settings import TreeSettings


class NaivePP(Strategy):
    """An EAGLE-2 tree of L nodes, root included, goes through the pipeline and is verified as a whole.

    It goes in segments of L_max rows, one behind the other: appendix A.1 sets L_max = 16 "for all baseline
    methods", and 4.1 has the input "processed in a pipelined fashion". The effect of the links' rate in the
    paper's figures says the same (docs/benchmarks.md). Nothing is pruned before the last segment has come
    back; what acting on each segment gains is what Pruned PP shows. With `segment_rows` = L the tree goes
    in one pass.
    """

    name: ClassVar[str] = "naive_pp"

    def __init__(self, settings: TreeSettings) -> None:
        self._settings = settings
        self._credits = 0
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._unsent: list[int] = []  # nodes of the tree that is being verified

    @property
    def max_draft_rows(self) -> int:
        return self._settings.tree_nodes

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                return [Emit((event.token,)), self._grow(event.token, event.context)]
            case Layer():
                self._growth.add(event)
                if not self._growth.finished:
                    return [self._growth.next_layer()]
                self._unsent = self._growth.base.best(self._settings.tree_nodes)
                return self._send()
            case Verified():
                tree = self._growth.base
                path = [int(tree.tokens[tree.node_of_row(row)]) for row in event.accepted[1:]]
                context = tree.context + len(event.accepted)
                return [
                    Emit((*path, event.token)),
                    AcceptPath(event.accepted, None, ends_round=True),
                    self._grow(event.token, context),
                ]
            case Returned():
                return []
            case CreditGranted():
                self._credits += 1
                return self._send()

    def _grow(self, token: int, context: int) -> Grow:
        settings = self._settings
        self._growth = Growth(self._growth.number + 1, token, context, settings.top_k, settings.depth)
        return self._growth.next_layer()

    def _send(self) -> list[Command]:
        commands: list[Command] = []
        tree, rows = self._growth.base, self._settings.segment_rows
        while self._unsent and self._credits:
            self._credits -= 1
            nodes, self._unsent = self._unsent[:rows], self._unsent[rows:]
            parents = tree.mark_sent(nodes)
            tokens = tuple(tree.tokens[nodes].tolist())
            commands.append(Send(tokens, tuple(parents), more=bool(self._unsent)))
        return commands
