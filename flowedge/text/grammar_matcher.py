"""The state of a grammar along the tokens of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flowedge.core.arrays import BoolArray
from flowedge.core.errors import GrammarError
from flowedge.core.grammar import GrammarSource

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarMatcher:
    """What a grammar allows after the tokens that were pushed; they can be popped again.

    An end token, and a token that the grammar rules out, ends the grammar: what follows is of no meaning.
    """

    def __init__(
        self,
        source: GrammarSource,
        matcher: LLMatcher,
        eos: frozenset[int],
        vocab_size: int,
        mask_bits: int,
    ) -> None:
        """Begin where `matcher` is.

        Args:
            eos: token ids that end an answer; vocab_size: number of the model's logits.
            mask_bits: size of the matcher's masks, at least `vocab_size`.
        """
        self._source = source
        self._matcher = matcher
        self._eos = eos
        self._ends = np.array(sorted(token for token in eos if token < vocab_size), dtype=np.int64)
        self._vocab_size = vocab_size
        self._mask_bits = mask_bits
        self._behind = 0  # tokens since the grammar has ended

    def copy(self) -> GrammarMatcher:
        """Return a matcher in the same state, which goes on by itself."""
        matcher = self._matcher.deep_copy()
        copied = GrammarMatcher(self._source, matcher, self._eos, self._vocab_size, self._mask_bits)
        copied._behind = self._behind
        return copied

    @property
    def ended(self) -> bool:
        """Whether an end token, or a token that the grammar rules out, was pushed."""
        return self._behind > 0

    def push(self, token: int) -> None:
        """Go on by a token.

        Raises:
            GrammarError: when the grammar exceeds a limit here.
        """
        if self._behind or token in self._eos or not self._matcher.try_consume_tokens([token]):
            self._behind += 1
        self._check()

    def pop(self, count: int) -> None:
        """Take back the last tokens."""
        behind = min(count, self._behind)
        self._behind -= behind
        if count > behind:
            self._matcher.rollback(count - behind)

    def allowed(self) -> BoolArray:
        """Return which tokens may follow: bool [vocab_size]. The grammar must not have ended.

        Raises:
            GrammarError: when there is none, or the grammar exceeds a limit here.
        """
        words = np.zeros(-(-self._mask_bits // 32), dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=self._vocab_size)
        allowed: BoolArray = bits.view(np.bool_)
        allowed[self._ends] = False
        goes_on = bool(allowed.any())
        allowed[self._ends] = self._matcher.is_accepting() and not (goes_on and self._source.ends_late)
        if not goes_on and not allowed.any():
            raise GrammarError(
                f"{self._source.parameter} cannot be followed: no token of the model continues the answer "
                "here, and it may not end"
            )
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split())[:500]
            raise GrammarError(f"{self._source.parameter} is too complex, or cannot be followed: {reason}")
