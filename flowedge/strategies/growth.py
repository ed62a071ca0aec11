"""The growth of a draft tree, layer by layer (EAGLE-2; flowspec, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.tree import ROOT, DraftTree
from flowedge.strategies.commands import Grow
from flowedge.strategies.events import Layer


class Growth:
    """T_base: a tree grown from the root, with top_k frontier nodes a layer and top_k children of each.

    The drafter keeps its scratch by names, which nodes keep when the root moves on.

    Attributes:
        number: of the growth, in Grow commands.
        base: the tree so far.
        layers: number of layers so far.
    """

    def __init__(self, number: int, root_token: int, context: int, top_k: int, depth: int) -> None:
        self.number = number
        self.base = DraftTree(root_token, context)
        self.layers = 0
        self._target = depth
        self._top_k = top_k
        self._frontier: list[int] = [ROOT]
        self._names: list[int] = [ROOT]  # of each node
        self._parent_names: list[int] = [-1]
        self._next_name = ROOT + 1

    def successor(self, tree: DraftTree, depth: int) -> Growth:
        """Return the next growth, of `depth` layers from the root of `tree`."""
        return Growth(self.number + 1, int(tree.tokens[ROOT]), tree.context, self._top_k, depth)

    @property
    def exhausted(self) -> bool:
        """Whether the drafter proposes nothing below the deepest layer."""
        return not self._frontier

    @property
    def finished(self) -> bool:
        return self.exhausted or self.layers >= self._target

    def deepen(self, layers: int) -> None:
        """Ask for this many layers below the deepest layer (score-aware expansion)."""
        self._target = self.layers + layers

    def next_layer(self) -> Grow:
        return Grow(
            growth=self.number,
            nodes=tuple(self._names[node] for node in self._frontier),
            parents=tuple(self._parent_names[node] for node in self._frontier),
            tokens=tuple(self.base.tokens[self._frontier].tolist()),
            width=self._top_k,
        )

    def follow(self, tokens: Sequence[int]) -> None:
        """Move the root along tokens below it, which the target drew, instead of growing from the new root.

        Raises:
            KeyError: when the tree does not have them.
        """
        root = ROOT
        for token in tokens:
            node = self.base.child(root, token)
            if node is None:
                raise KeyError(token)
            root = node
        kept = self.base.reroot(root).tolist()
        places = {old: new for new, old in enumerate(kept)}
        self._names = [self._names[old] for old in kept]
        self._parent_names = [self._parent_names[old] for old in kept]
        self._frontier = [places[node] for node in self._frontier if node in places]

    def add(self, layer: Layer) -> None:
        """Add the computed children of living nodes; the best top_k of them are the next frontier."""
        places = {name: node for node, name in enumerate(self._names)}
        of_layer = np.array([places.get(name, -1) for name in layer.nodes], dtype=np.int64)
        proposed = (layer.tokens >= 0).ravel() & np.repeat(of_layer >= 0, layer.tokens.shape[1])
        parents = np.repeat(of_layer, layer.tokens.shape[1])[proposed]
        tokens = layer.tokens.ravel()[proposed]
        scores = self.base.scores[parents] + layer.log_probs.ravel()[proposed]
        nodes = np.array(self.base.put(parents.tolist(), tokens.tolist(), scores.tolist()), dtype=np.int64)
        self._name_new_nodes()
        best = np.argsort(-self.base.scores[nodes], kind="stable")[: self._top_k]
        self._frontier = nodes[np.sort(best)].tolist()
        self.layers += 1

    def _name_new_nodes(self) -> None:
        known = len(self._names)
        self._parent_names += [self._names[parent] for parent in self.base.parents[known:].tolist()]
        count = len(self.base) - known
        self._names += range(self._next_name, self._next_name + count)
        self._next_name += count

    def frontier_score(self) -> float:
        """Return the best score that a node below the frontier can have: no child scores above its parent."""
        return float(self.base.scores[self._frontier].max())


def best_absent(base: DraftTree, tree: DraftTree, count: int) -> list[int]:
    """Return the nodes of `base` that are in `tree` too, then the `count` best nodes of `base` that are not.

    Both trees have the same root. The returned nodes are connected, so score-aware expansion can merge them
    into `tree`.
    """
    in_tree: dict[int, int | None] = {ROOT: ROOT}
    for node in range(ROOT + 1, len(base)):
        twin = in_tree[int(base.parents[node])]
        in_tree[node] = None if twin is None else tree.child(twin, int(base.tokens[node]))
    absent = [node for node in base.ranking().tolist() if in_tree[node] is None]
    return [node for node, twin in in_tree.items() if twin is not None] + absent[:count]
