"""Pruned PP: naive pipeline parallelism with tree pruning and early exit (flowspec, section 4.3)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.flowspec.segmented import SegmentedRounds


class PrunedPP(SegmentedRounds):
    """One tree at a time, in score-ordered segments; no expansion.

    Section 4.3 says that Pruned PP extends Naive PP by tree pruning and early exit, and that adding tree
    expansion and taking score-based segmentation away gives "FlowSpec w/o SBD". So it has the segments of
    section 3.2 in order of score, the pruning of 3.3 after each that returns, and a round that ends as soon
    as the drawn token is not in the tree; the next tree is drafted then, as in Naive PP.
    """

    name: ClassVar[str] = "pruned_pp"
