"""The tokens that a drafter proposes in every session, and learning them from what a target draws."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flowedge.core.arrays import BoolArray, IntArray
from flowedge.drafting.token_counts import CountsFile, TokenCounts


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


ENOUGH_TOKENS = 50_000  # drawn tokens from which a vocabulary is chosen; fewer name too few of the rare ones
WRITE_TOKENS = 8192  # counted tokens after which the file is written again


class VocabularyLearner:
    """Counts drawn tokens, and says when another vocabulary is due.

    A vocabulary is chosen when enough tokens are counted, and again whenever their number has doubled, since
    the vocabulary changes ever less and copying the LM head's rows takes up to a second.

    Attributes:
        vocabulary: the tokens that were chosen last; None for all.
    """

    def __init__(self, size: int, file: CountsFile) -> None:
        """Go on from the counts of a file, to choose `size` tokens."""
        self._size, self._file = size, file
        self._counts: TokenCounts = file.read()
        self._written = self._chosen = self._counts.total
        self.vocabulary: DraftVocabulary | None = self._choose()

    def add(self, tokens: IntArray) -> None:
        """Count drawn tokens, int64 [n]."""
        self._counts.add(tokens)

    def rest(self) -> bool:
        """Do what has to wait until no session is open; return whether `vocabulary` has changed."""
        total = self._counts.total
        if total - self._written >= WRITE_TOKENS:
            self._file.write(self._counts)
            self._written = total
        if self.vocabulary is not None and total < 2 * self._chosen:
            return False
        chosen = self._choose()
        if chosen is None:
            return False
        self.vocabulary, self._chosen = chosen, total
        return True

    def _choose(self) -> DraftVocabulary | None:
        """Return the most frequent tokens; None until enough are counted."""
        return DraftVocabulary.of(self._counts, self._size) if self._counts.total >= ENOUGH_TOKENS else None
