"""Naive pipeline parallelism: draft a tree, verify it, repeat (flowspec, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
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

    The tree goes in N + 1 segments, one behind the other, as the authors' code cuts it, equal but for a row
    (the shorter ones first): five of 16 rows over four stages. Section 4.1 has the input "processed in a
    pipelined fashion". Appendix A.1 sets L_max = 16 "for Gardener and all baseline methods", which is the
    same over four stages; the code bounds no segment of this method, and nor does `segment_rows`. Nothing is
    pruned before the last segment has returned; the gain of acting on each segment is what Pruned PP shows.
    """

    name: ClassVar[str] = "naive_pp"
    computed_alone: ClassVar[bool] = False

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(max_draft_rows=settings.tree_nodes)
        self._settings = settings
        self._credits = 0
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._segments = 1  # number of segments that a tree is cut into: N + 1
        self._unsent: list[list[int]] = []  # segments of the tree that is being verified

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits, self._segments = event.credits, event.stages + 1
                return [Emit((event.token,)), self._grow(event.token, event.context)]
            case Layer():
                self._growth.add(event)
                if not self._growth.finished:
                    return [self._growth.next_layer()]
                nodes = self._growth.base.best(self._settings.tree_nodes)
                self._unsent = cut(nodes, self._segments)
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
        while self._unsent and self._credits:
            self._credits -= 1
            nodes = self._unsent.pop(0)
            commands.append(send_nodes(self._growth.base, nodes, more=bool(self._unsent)))
        return commands


def cut(nodes: Sequence[int], parts: int) -> list[list[int]]:
    """Return the nodes in so many segments, which differ by a row at most, the shorter ones first.

    There are fewer segments if there are fewer nodes.
    """
    count = min(parts, len(nodes))
    rows, longer = divmod(len(nodes), count)
    sizes = [rows] * (count - longer) + [rows + 1] * longer
    left = iter(nodes)
    return [list(islice(left, size)) for size in sizes]
