"""Growing a draft tree layer by layer (EAGLE-2; flowspec, section 3.2)."""

from __future__ import annotations

import numpy as np

from flowedge.core.tree import ROOT, DraftTree
from flowedge.strategies.base import Grow, Layer


class Growth:
    """T_base: a tree grown from the root, top_k frontier nodes a layer with top_k children each.

    Node numbers of `base` are the names by which the drafter keeps its scratch, so `base` is only added to.

    Attributes:
        number: told apart from other growths by this; base: the tree so far; layers: how many are grown.
    """

    def __init__(self, number: int, root_token: int, context: int, top_k: int, depth: int) -> None:
        self.number = number
        self.base = DraftTree(root_token, context)
        self.layers = 0
        self._target = depth
        self._top_k = top_k
        self._frontier: list[int] = [ROOT]

    @property
    def exhausted(self) -> bool:
        """Whether the drafter has nothing to propose below the deepest layer."""
        return not self._frontier

    @property
    def finished(self) -> bool:
        return self.exhausted or self.layers >= self._target

    def deepen(self, layers: int) -> None:
        """Ask for more layers below the deepest one (score-aware expansion), unless it is exhausted."""
        self._target = self.layers + layers

    def next_layer(self) -> Grow:
        """The command that computes the next layer."""
        frontier = np.array(self._frontier)
        return Grow(
            growth=self.number,
            nodes=tuple(self._frontier),
            parents=tuple(self.base.parents[frontier].tolist()),
            tokens=tuple(self.base.tokens[frontier].tolist()),
            width=self._top_k,
        )

    def add(self, layer: Layer) -> None:
        """Put the computed children into the tree; the best top_k of them are the next frontier."""
        proposed = layer.tokens.ravel() >= 0
        parents = np.repeat(np.array(layer.nodes), layer.tokens.shape[1])[proposed]
        tokens = layer.tokens.ravel()[proposed]
        scores = self.base.scores[parents] + layer.log_probs.ravel()[proposed]
        nodes = np.array(self.base.put(parents.tolist(), tokens.tolist(), scores.tolist()), dtype=np.int64)
        best = np.argsort(-self.base.scores[nodes], kind="stable")[: self._top_k]
        self._frontier = nodes[np.sort(best)].tolist()
        self.layers += 1

    def frontier_score(self) -> float:
        """The best score an ungrown node could have: a child scores no higher than its parent."""
        return float(self.base.scores[self._frontier].max())


def best_absent(base: DraftTree, tree: DraftTree, count: int) -> list[int]:
    """The `count` best nodes of `base` that `tree` does not have, and those it has (score-aware expansion).

    Together they are connected, so that they can be merged into `tree`, which has the same root.
    """
    here: dict[int, int | None] = {ROOT: ROOT}
    for node in range(ROOT + 1, len(base)):
        twin = here[int(base.parents[node])]
        here[node] = None if twin is None else tree.child(twin, int(base.tokens[node]))
    absent = [node for node in base.ranking().tolist() if here[node] is None]
    return [node for node, twin in here.items() if twin is not None] + absent[:count]
