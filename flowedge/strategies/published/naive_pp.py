"""Naive pipeline parallelism: draft a tree, verify it, repeat (flowspec, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.core.tree import DraftTree
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Command, Emit, Grow
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.growth import Growth
from flowedge.strategies.settings import TreeSettings
from flowedge.strategies.tree_commands import accept_path, send_nodes, verified_path


class NaivePP(Strategy):
    """An EAGLE-2 tree of L nodes, root included, goes through the pipeline and is verified as a whole.

    The tree goes in segments of L_max rows, one behind the other: appendix A.1 sets L_max = 16 "for Gardener
    and all baseline methods", and section 4.1 has the input "processed in a pipelined fashion". The influence
    of the links' rate in the paper's figures agrees with this reading (testbed/docs/costs.md). Nothing is
    pruned before the last segment has returned; the gain of acting on each segment is what Pruned PP shows.
    With `segment_rows` = L the tree goes in one segment.
    """

    name: ClassVar[str] = "naive_pp"
    computed_alone: ClassVar[bool] = False

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(max_draft_rows=settings.tree_nodes)
        self._settings = settings
        self._credits = 0
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._unsent: list[int] = []  # nodes of the tree that is being verified

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
                base = self._growth.base
                path, emit = verified_path(base, event)
                accept = accept_path(base, event, None)
                return [emit, accept, self._grow(event.token, base.context + len(path))]
            case Returned():
                return []
            case CreditGranted():
                self._credits += 1
                return self._send()

    def _grow(self, token: int, context: int) -> Grow:
        self._growth = self._growth.successor(DraftTree(token, context), self._settings.depth)
        return self._growth.next_layer()

    def _send(self) -> list[Command]:
        commands: list[Command] = []
        rows = self._settings.segment_rows
        while self._unsent and self._credits:
            self._credits -= 1
            nodes, self._unsent = self._unsent[:rows], self._unsent[rows:]
            commands.append(send_nodes(self._growth.base, nodes, more=bool(self._unsent)))
        return commands
