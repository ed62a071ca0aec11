"""Learning of a draft vocabulary from the tokens that a target draws."""

from __future__ import annotations

from flowedge.core.arrays import IntArray
from flowedge.drafting.vocabulary.counts_file import CountsFile
from flowedge.drafting.vocabulary.draft_vocabulary import DraftVocabulary
from flowedge.drafting.vocabulary.token_counts import TokenCounts

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
