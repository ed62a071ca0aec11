"""FlowSpec without score-based draft segmentation (flowspec, section 4.3)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flowedge.core.tree import UNSENT
from flowedge.strategies.flowspec.flowspec_paper import FlowSpecPaper


class FlowSpecNoSBD(FlowSpecPaper):
    """FlowSpec as its paper runs it, but with the draft sequence in tree order, layer by layer.

    The nodes of a tree are still the best by score, as in EAGLE-2; only the order in which they are sent is
    that of the tree (3.2 gives no other for the ablation). The new nodes of an expansion follow the same
    order.
    """

    name: ClassVar[str] = "flowspec_no_sbd"

    def choose(self, count: int) -> list[int]:
        unsent = np.flatnonzero(self.tree.rows == UNSENT)
        by_layer = unsent[np.argsort(self.tree.depths[unsent], kind="stable")]
        return [int(node) for node in by_layer[:count]]
