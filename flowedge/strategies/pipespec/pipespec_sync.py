"""Speculative decoding in two synchronous steps, which PipeSpec is compared with (pipespec, section 4.2)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.flowspec.naive_pp import NaivePP
from flowedge.strategies.settings import LookaheadSettings, TreeSettings


class PipeSpecSync(NaivePP):
    """A chain of `lookahead` tokens is drafted; it goes through the pipeline in one segment; then the next.

    That is a tree with one child a node. Nothing is drafted while the chain is under way.
    """

    name: ClassVar[str] = "pipespec_sync"

    def __init__(self, settings: LookaheadSettings) -> None:
        rows = settings.lookahead + 1  # with the root
        super().__init__(TreeSettings(tree_nodes=rows, depth=settings.lookahead, top_k=1, segment_rows=rows))
