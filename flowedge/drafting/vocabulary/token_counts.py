"""How often a target draws each token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowedge.core.arrays import IntArray


class TokenCounts:
    """The number of times that each token was drawn."""

    def __init__(self, vocab_size: int, counts: IntArray | None = None) -> None:
        """Begin with `counts`, int64 [vocab_size] and not negative; without them nothing was drawn yet.

        Raises:
            ValueError: when the counts are of another shape or dtype, or negative.
        """
        if counts is None:
            counts = np.zeros(vocab_size, dtype=np.int64)
        if counts.shape != (vocab_size,) or counts.dtype != np.int64 or (counts < 0).any():
            raise ValueError(
                f"counts of {vocab_size} tokens are int64 and not negative; these are {counts.dtype} "
                f"{list(counts.shape)}"
            )
        self.counts = counts

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, tokens: npt.NDArray[np.integer[Any]]) -> None:
        """Count drawn tokens, int [n]; ids beyond the vocabulary are ignored."""
        known = tokens[(tokens >= 0) & (tokens < self.vocab_size)]
        np.add.at(self.counts, known, 1)

    def most_frequent(self, size: int) -> IntArray:
        """Return the `size` tokens that were drawn most often, int64, the lowest of equals first."""
        return np.argsort(-self.counts, kind="stable")[:size].astype(np.int64)

    def coverage(self, ids: IntArray) -> float:
        """Return the share of all drawn tokens that are among `ids`; 0 where nothing was drawn."""
        return float(self.counts[ids].sum() / max(self.total, 1))
