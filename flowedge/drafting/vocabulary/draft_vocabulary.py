"""The tokens that a drafter proposes in every session."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flowedge.core.arrays import BoolArray, IntArray
from flowedge.drafting.vocabulary.token_counts import TokenCounts


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """A part of a target's vocabulary.

    Attributes:
        ids: int64 [size], the target's ids of the tokens, each once.
        vocab_size: the target's number of tokens.
    """

    ids: IntArray
    vocab_size: int

    def __post_init__(self) -> None:
        ids = self.ids
        if not len(ids) or ids.min() < 0 or ids.max() >= self.vocab_size or len(np.unique(ids)) < len(ids):
            raise ValueError(f"a draft vocabulary names tokens of 0 to {self.vocab_size - 1} once each")

    @classmethod
    def of(cls, counts: TokenCounts, size: int) -> DraftVocabulary:
        """Return the `size` tokens that were drawn most often."""
        return cls(counts.most_frequent(size), counts.vocab_size)

    def within(self, vocab_size: int) -> DraftVocabulary:
        """Return the part of this vocabulary below `vocab_size`, for a model that knows fewer tokens."""
        if vocab_size >= self.vocab_size:
            return self
        return DraftVocabulary(self.ids[self.ids < vocab_size], vocab_size)

    @property
    def size(self) -> int:
        return len(self.ids)

    @cached_property
    def _members(self) -> BoolArray:
        members = np.zeros(self.vocab_size, dtype=np.bool_)
        members[self.ids] = True
        return members

    def outside(self, tokens: IntArray) -> BoolArray:
        """Return which of the target's tokens, int64 [n], are not in this vocabulary: bool [n]."""
        return ~self._members[tokens]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the tokens and their order."""
        return hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()[:16]
