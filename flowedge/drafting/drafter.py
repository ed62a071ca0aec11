"""The interface of a drafter: what proposes the tokens of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flowedge.core.arrays import FloatArray, IntArray, Payload
from flowedge.core.sampling import SamplingParams
from flowedge.models.layers.taps import Taps

ROOT = 0  # the name of every growth's root
NO_TOKEN = -1


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """The likeliest children of each of f frontier nodes, at most as many as were asked for.

    A drafter may have fewer children for a node than for another, or none. Rows are as long as the longest;
    the others end in NO_TOKEN with a log-probability of -inf. With no child at all the arrays are [f, 0].

    Attributes:
        tokens: int64 [f, c], each row's likeliest first, no token twice.
        log_probs: float64 [f, c].
    """

    tokens: IntArray
    log_probs: FloatArray


class Drafter(Protocol):
    """Proposes tokens for the sessions that are open; called from one thread at a time.

    A session's tokens are the prompt and what has been accepted since; the last one known is the root of the
    next tree. Its true rows count the tokens after the first: row t stands for token[t + 1] and, for drafters
    that need features, for the target's final hidden state of token[t], which token[t + 1] was drawn from.
    What is proposed below a node depends on the true rows and on the tokens from the root to the node, and on
    nothing else. Scratch of branches belongs to the latest growth.
    """

    @property
    def needs_features(self) -> bool:
        """Whether `extend` has to be given features."""

    @property
    def taps(self) -> Taps:
        """Layers of the target whose inputs its features contain beside the final hidden state."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in memory that are the drafter's own, those shared with the target excluded."""

    @property
    def fingerprint(self) -> str:
        """A digest of what its proposals depend on."""

    def session_bytes(self, capacity: int) -> int:
        """Bytes that a session of so many true rows takes."""

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        """Begin a session of at most `capacity` true rows, of which the first token is known.

        With `noise` children are ranked by the noise of the target's draws as well (see ranking.py), which
        takes a temperature above 0; without, by how likely they are.
        """

    def close(self, session: str) -> None:
        """Free a session; an unknown one is ignored."""

    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        """Add true rows, in order; the last token becomes the root.

        Args:
            features: [n, width] in the wire's dtype, as the last stage returns them: the final hidden state,
                then the tapped ones in layer order. Ignored by drafters that need none.
            next_tokens: int64 [n], the token after each.

        Raises CapacityError beyond the session's capacity.
        """

    def rewind(self, session: str, rows: int) -> None:
        """Forget the true rows from `rows` on; the next growth needs an extension first.

        ValueError when the session has fewer rows.
        """

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer:
        """The likeliest children of each frontier node, at most `width` of each.

        A new number in `growth` begins a tree at the root and discards the scratch of the one before. The
        root is asked for alone and first; the parent of any other node has been asked for in this growth.

        Args:
            nodes: [f] names of the frontier nodes, ROOT for the root; parents: [f] names of their parents, -1
                for the root; tokens: [f], which any drafter may have proposed.

        Raises ValueError for a node whose parent is not of this growth, or a root that is not known.
        """


def padded_layer(children: Sequence[Sequence[tuple[int, float]]]) -> DraftLayer:
    """A layer from the (token, log-probability) children of each node, best first."""
    longest = max((len(row) for row in children), default=0)
    tokens = np.full((len(children), longest), NO_TOKEN, dtype=np.int64)
    log_probs = np.full((len(children), longest), -np.inf)
    for i, row in enumerate(children):
        for j, (token, log_prob) in enumerate(row):
            tokens[i, j], log_probs[i, j] = token, log_prob
    return DraftLayer(tokens, log_probs)
