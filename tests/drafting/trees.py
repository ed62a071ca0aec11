"""Random growths of a drafter, for tests that hold each layer against something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.drafting.drafter import ROOT, Drafter, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.model_drafter import Prediction, Predictor

Check = Callable[[list[int], np.ndarray, np.ndarray], None]
"""Told the path below the root to a node, and what is proposed there: tokens and log-probabilities."""


def extend(drafter: Drafter, session: str, features: Payload | None, next_tokens: IntArray) -> None:
    """Add true rows to a session."""
    drafter.grow([GrowRequest.extension(session, features, next_tokens)])


def grow(drafter: Drafter, session: str, growth: int, frontier: Frontier, width: int) -> DraftLayer:
    """Return the best children of the frontier nodes of a session."""
    (layer,) = drafter.grow([GrowRequest(session, growth, frontier, width)])
    return layer


def predict(drafter: Predictor, session: str, growth: int, frontier: Frontier) -> Prediction:
    """Return the tokens that follow each frontier node of a session."""
    (found,) = drafter.predict([GrowRequest(session, growth, frontier, 1)])
    return found


def grow_and_check(
    drafter: Drafter,
    growth: int,
    layers: int,
    check: Check,
    *,
    vocab: int,
    width: int = 4,
    frontier: int = 3,
    root: int = 0,
) -> dict[int, list[int]]:
    """Grow a tree whose frontiers are random nodes, some of which the drafter did not propose.

    root: the root's token.

    Returns the path to each node that was expanded.
    """
    rng = np.random.default_rng(growth)
    paths: dict[int, list[int]] = {ROOT: []}
    expanded: dict[int, list[int]] = {}
    nodes, parents, tokens = [ROOT], [-1], [root]
    for _ in range(layers):
        layer = grow(drafter, "s", growth, Frontier(nodes, parents, tokens), width)
        check_shape(layer, len(nodes), width)
        for i, node in enumerate(nodes):
            check(paths[node], *children(layer, i))
            expanded[node] = paths[node]
        chosen: set[tuple[int, int]] = set()
        while len(chosen) < frontier:
            i = int(rng.integers(len(nodes)))
            proposed = children(layer, i)[0].tolist() or [int(rng.integers(vocab))]
            foreign = rng.random() < 0.3
            chosen.add((nodes[i], int(rng.integers(vocab)) if foreign else int(rng.choice(proposed))))
        first = max(paths) + 1
        nodes = list(range(first, first + frontier))
        parents, tokens = [parent for parent, _ in sorted(chosen)], [token for _, token in sorted(chosen)]
        for node, parent, token in zip(nodes, parents, tokens, strict=True):
            paths[node] = [*paths[parent], token]
    return expanded


def children(layer: DraftLayer, node: int) -> tuple[np.ndarray, np.ndarray]:
    proposed = layer.tokens[node] >= 0
    return layer.tokens[node][proposed], layer.log_probs[node][proposed]


def check_shape(layer: DraftLayer, nodes: int, width: int) -> None:
    assert layer.tokens.dtype == np.int64 and layer.log_probs.dtype == np.float64
    assert layer.tokens.shape == layer.log_probs.shape
    assert layer.tokens.shape[0] == nodes and layer.tokens.shape[1] <= width
    for tokens, log_probs in zip(layer.tokens, layer.log_probs, strict=True):
        count = int((tokens >= 0).sum())
        assert (tokens[:count] >= 0).all(), "what is missing is missing at the end"
        assert len(set(tokens[:count].tolist())) == count, "a token is proposed once"
        assert (log_probs[count:] == -np.inf).all()
        assert (np.diff(log_probs[:count]) <= 0).all() and (log_probs[:count] <= 0).all()
