"""Naive pipeline parallelism: draft a tree, verify it in one pass, repeat (flowspec, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.base import (
    Command,
    CreditGranted,
    Emit,
    Event,
    Grow,
    Layer,
    Prefilled,
    Prune,
    Returned,
    Send,
    Strategy,
    Verified,
)
from flowedge.strategies.growth import Growth
from flowedge.strategies.settings import TreeSettings


class NaivePP(Strategy):
    """An EAGLE-2 tree of L nodes, root included, goes through the pipeline as a single segment."""

    name: ClassVar[str] = "naive_pp"

    def __init__(self, settings: TreeSettings) -> None:
        self._settings = settings
        self._credits = 0
        self._growth = Growth(0, 0, 0, settings.top_k, settings.depth)
        self._ready = False

    @property
    def max_draft_rows(self) -> int:
        return self._settings.tree_nodes

    def handle(self, event: Event) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                return [Emit((event.token,)), self._grow(event.token, event.context)]
            case Layer():
                self._growth.add(event)
                if not self._growth.finished:
                    return [self._growth.next_layer()]
                self._ready = True
                return self._send()
            case Verified():
                tree = self._growth.base
                path = [int(tree.tokens[tree.node_of_row(row)]) for row in event.accepted[1:]]
                context = tree.context + len(event.accepted)
                return [
                    Emit((*path, event.token)),
                    Prune(event.accepted, None, ends_round=True),
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
        if not self._ready or self._credits == 0:
            return []
        self._ready = False
        self._credits -= 1
        tree = self._growth.base
        nodes = tree.best(self._settings.tree_nodes)
        parents = tree.mark_sent(nodes)
        return [Send(tuple(tree.tokens[nodes].tolist()), tuple(parents))]
