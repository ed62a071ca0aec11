"""FlowSpec without score-based draft segmentation (flowspec, section 4.3)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flowedge.core.tree import UNSENT
from flowedge.strategies.flowspec.flowspec_paper import FlowSpecPaper


class FlowSpecNoSBD(FlowSpecPaper):
    """FlowSpec as its paper runs it, except that nodes are sent in tree order, layer by layer.

    A tree still has the best nodes by score, as in EAGLE-2, and only the order of sending changes. The paper
    does not name the order of this ablation. The new nodes of an expansion are sent layer by layer too.
    """

    name: ClassVar[str] = "flowspec_no_sbd"

    def choose(self, count: int) -> list[int]:
        unsent = np.flatnonzero(self.tree.rows == UNSENT)
        by_layer = unsent[np.argsort(self.tree.depths[unsent], kind="stable")]
        return [int(node) for node in by_layer[:count]]
