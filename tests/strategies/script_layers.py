"""Drafted layers for scripts of events."""

from __future__ import annotations

import numpy as np

from flowedge.strategies.settings import TreeSettings
from tests.strategies.script import Script


def random_layer(rng: np.random.Generator, width: int, rows: int, vocab: int = 1000):
    tokens = [rng.permutation(vocab)[:width].tolist() for _ in range(rows)]
    probs = [np.sort(rng.dirichlet(np.full(width + 1, 0.3))[:width])[::-1].tolist() for _ in range(rows)]
    return tokens, probs


def grow_all(script: Script, rng: np.random.Generator, layers: int = 100) -> None:
    """Answer growth commands until none is asked for."""
    for _ in range(layers):
        if script.grow is None:
            return
        script.layer(*random_layer(rng, script.grow.width, len(script.grow.nodes)))


def small(**changes: int) -> TreeSettings:
    """A chain-like tree: one frontier node, two children, two layers."""
    values = {
        "tree_nodes": 5,
        "depth": 2,
        "top_k": 2,
        "segment_rows": 2,
        "expand_nodes": 5,
        "expand_depth": 2,
        "deepen_nodes": 2,
        "deepen_layers": 1,
        "max_draft_rows": 20,
    }
    return TreeSettings(**{**values, **changes})


# Root 0 with children 1 (0.6) and 2 (0.3); below 1 are 3 (0.9) and 4 (0.05), below 2 are 5 (0.5), 6 (0.4).
FIRST = ([[1, 2]], [[0.6, 0.3]])
SECOND = ([[3, 4], [5, 6]], [[0.9, 0.05], [0.5, 0.4]])
