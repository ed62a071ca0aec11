"""The places of a text, sorted by the tokens before them: a suffix array, read from right to left."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

MAX_N = 12  # tokens before a place by which it is sorted
MOST_PLACES = 512  # of a range that are counted, so that a text that loops costs no more than another
TOKEN_BYTES = 9  # of a token and its place, with the room into which arrays grow
_BREAK = -1  # stands before each text, and is no token

Followers: TypeAlias = tuple[list[int], list[int]]  # tokens, and their places in ascending order


class SuffixIndex:
    """One text, or several.

    A place is the index of a token in `tokens`. In `places` those that the same n tokens precede are
    neighbours, for every n up to MAX_N, so the occurrences of n tokens are found by bisection. A token takes
    8 bytes, and is added by O(log length) comparisons and one move of memory.

    Attributes:
        tokens: the texts, with a break before each.
        places: of all tokens that another token of their text precedes.
    """

    def __init__(self, tokens: array[int] | None = None, places: array[int] | None = None) -> None:
        self.tokens = array("i", [_BREAK]) if tokens is None else tokens
        self.places = array("i") if places is None else places

    @property
    def length(self) -> int:
        """The number of tokens of a single text."""
        return len(self.tokens) - 1

    def end(self, count: int) -> tuple[int, ...]:
        """Return the last tokens of a single text, `count` at most."""
        return tuple(self.tokens[max(len(self.tokens) - count, 1) :])

    def copy(self) -> SuffixIndex:
        return SuffixIndex(self.tokens[:], self.places[:])

    def extend(self, text: Iterable[int]) -> None:
        """Add tokens to the last text."""
        for token in text:
            high = len(self.places)
            if self.tokens[-1] != _BREAK:
                for _, high in self._narrowed(islice(reversed(self.tokens), MAX_N)):  # noqa: B007 (the last)
                    pass
                self.places.insert(high, len(self.tokens))
            self.tokens.append(token)

    def begin_text(self) -> None:
        """Begin another text, if the last one has any token."""
        if self.tokens[-1] != _BREAK:
            self.tokens.append(_BREAK)

    def truncate(self, length: int) -> None:
        """Forget the tokens of a single text from its token `length` on."""
        del self.tokens[length + 1 :]
        self._keep(0)

    def drop(self, count: int) -> None:
        """Forget whole texts at the beginning, which take `count` tokens and breaks."""
        del self.tokens[:count]
        self._keep(count)

    def _keep(self, count: int) -> None:
        """Keep the places of the tokens that are left after `count` tokens at the beginning have gone."""
        places = np.frombuffer(self.places, dtype=np.intc) - count
        self.places = array("i", places[(places >= 0) & (places < len(self.tokens))].tobytes())

    def ranges(self, suffix: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the range in `places` that the last n tokens of `suffix` precede, for n = 1, 2, ...

        It ends before the first empty range.
        """
        for low, high in self._narrowed(reversed(suffix[-MAX_N:])):
            if low == high:
                return
            yield low, high

    def _narrowed(self, before: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the range that 1, 2, ... tokens precede, the nearest given first.

        It ends with the first empty range, which lies where a place with these tokens before it belongs, and
        behind a break.
        """
        tokens, places, low, high = self.tokens, self.places, 0, len(self.places)
        for n, token in enumerate(before, start=1):

            def key(place: int, n: int = n) -> int:
                return tokens[place - n]

            low = bisect_left(places, token, low, high, key=key)
            high = bisect_right(places, token, low, high, key=key)
            yield low, high
            if low == high or token == _BREAK:
                return

    def followers(self, found: tuple[int, int]) -> Followers:
        """Return the tokens at the places of a range, in the order of the text.

        Of a range of more than MOST_PLACES, those at even distances in the order of `places`.
        """
        low, high = found
        places = sorted(self.places[low : high : (high - low - 1) // MOST_PLACES + 1])
        return [self.tokens[place] for place in places], places
