"""Synchronous speculative decoding, with which PipeSpec is compared (pipespec, section 4.2)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.flowspec.naive_pp import NaivePP
from flowedge.strategies.settings import LookaheadSettings, TreeSettings


class PipeSpecSync(NaivePP):
    """Drafts a chain of `lookahead` tokens, verifies it in one segment, and drafts the next chain.

    A chain is a tree with one child a node. Nothing is drafted while a chain is in flight.
    """

    name: ClassVar[str] = "pipespec_sync"

    def __init__(self, settings: LookaheadSettings) -> None:
        rows = settings.lookahead + 1  # with the root
        super().__init__(TreeSettings(tree_nodes=rows, depth=settings.lookahead, top_k=1, segment_rows=rows))
