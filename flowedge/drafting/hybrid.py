"""Two drafters as one: each node's children are the best of what either proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowedge.drafting.drafter import Drafter, DraftLayer, padded_layer
from flowedge.messages import Payload
from flowedge.models.taps import Taps
from flowedge.sampling import IntArray, SamplingParams


class HybridDrafter:
    """A Drafter that merges the trees of two by score.

    Both are asked about every frontier node, whoever proposed it, so branches of one go on with tokens of the
    other. A token that both propose has the higher of its log-probabilities.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        """Ties go to the first. ValueError for parts that tap different layers."""
        self._parts = (first, second)
        self._taps = first.taps or second.taps
        if any(part.taps not in ((), self._taps) for part in self._parts):
            raise ValueError(f"one drafter taps the layers {first.taps}, the other {second.taps}")

    @property
    def needs_features(self) -> bool:
        return any(part.needs_features for part in self._parts)

    @property
    def taps(self) -> Taps:
        return self._taps

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part in self._parts)

    @property
    def fingerprint(self) -> str:
        return "+".join(part.fingerprint for part in self._parts)

    def session_bytes(self, capacity: int) -> int:
        return sum(part.session_bytes(capacity) for part in self._parts)

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        for part in self._parts:
            part.open(session, capacity, first_token, noise)

    def close(self, session: str) -> None:
        for part in self._parts:
            part.close(session)

    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        for part in self._parts:
            part.extend(session, features, next_tokens)

    def rewind(self, session: str, rows: int) -> None:
        for part in self._parts:
            part.rewind(session, rows)

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer:
        first, second = (part.grow(session, growth, nodes, parents, tokens, width) for part in self._parts)
        return merged(first, second, width)


def merged(first: DraftLayer, second: DraftLayer, width: int) -> DraftLayer:
    """The `width` best of the children that two layers have below the same nodes."""
    children: list[list[tuple[int, float]]] = []
    given: list[list[tuple[float, float]]] = []
    for node in range(len(first.tokens)):
        here, there = (
            {
                token: log_prob
                for token, log_prob in zip(
                    layer.tokens[node].tolist(), layer.log_probs[node].tolist(), strict=True
                )
                if token >= 0
            }
            for layer in (first, second)
        )
        parts = {
            token: (here.get(token, -math.inf), there.get(token, -math.inf)) for token in (*here, *there)
        }
        best = sorted(((token, max(pair)) for token, pair in parts.items()), key=lambda child: -child[1])[
            :width
        ]
        children.append(best)
        given.append([parts[token] for token, _ in best])
    layer = padded_layer(children)
    filled = np.full((*layer.tokens.shape, 2), -np.inf)
    for node, pairs in enumerate(given):
        filled[node, : len(pairs)] = np.array(pairs).reshape(-1, 2)
    return DraftLayer(layer.tokens, layer.log_probs, filled)
