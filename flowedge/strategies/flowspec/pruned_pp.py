"""Pruned PP: naive pipeline parallelism with tree pruning and early exit (flowspec, section 4.3)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.flowspec.segmented import SegmentedRounds


class PrunedPP(SegmentedRounds):
    """SegmentedRounds as they are: one tree at a time, in score-ordered segments, without expansion.

    Section 4.3: Pruned PP extends Naive PP by tree pruning and early exit; with tree expansion, and without
    score-based segmentation, it becomes "FlowSpec w/o SBD". So Pruned PP has the score-ordered segments of
    section 3.2 and prunes after each returned segment (3.3). A round ends as soon as the drawn token is not
    in the tree; the next tree is drafted then, as in Naive PP.
    """

    name: ClassVar[str] = "pruned_pp"
