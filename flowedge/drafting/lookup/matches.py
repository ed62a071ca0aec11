"""What may follow a text, by what followed its last tokens earlier: the estimate of Witten and Bell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from flowedge.drafting.suffix_index import Followers, SuffixIndex

EARLIER_N = 2  # tokens of the shortest match in earlier answers


@dataclass(frozen=True)
class Match:
    """The tokens that followed earlier occurrences of a path's end.

    Attributes:
        length: the tokens of the longest match; 0 without a match.
        distinct: the number of different tokens that followed the longest match.
        candidates: (token, log-probability) of each token that may follow, the best first.
    """

    length: int
    distinct: int
    candidates: list[tuple[int, float]]


def find_match(
    index: SuffixIndex, suffix: Sequence[int], min_n: int, max_n: int, earlier: SuffixIndex | None = None
) -> Match:
    """Return the tokens that may follow a suffix, by its matches of `min_n` to `max_n` tokens.

    The estimate is Witten and Bell's. After the last n tokens of the suffix, let t occur c(t) times, all
    tokens C times, and T different tokens. Then

        p_n(t) = (c(t) + T * p_{n-1}(t)) / (C + T),    p below min_n = 0

    so T / (C + T) of the mass is left to shorter matches and, at the shortest, to tokens that never followed.
    The longest match weighs most, and a single occurrence is no certainty. Of equal candidates, the one that
    followed the longest match last comes first.

    Args:
        index: the text that ends with the suffix, or with its beginning.
        earlier: texts before it, of which matches of EARLIER_N tokens and more count as well.
    """
    probability: dict[int, float] = {}
    latest: dict[int, int] = {}
    length = distinct = 0
    suffix = suffix[-max_n:]
    for n, (tokens, places) in enumerate(_followers(index, earlier, suffix), start=1):
        if n < min_n or not tokens:
            continue
        counts = Counter(tokens)
        length, distinct = n, len(counts)
        total = len(tokens) + distinct
        probability = {token: distinct * p / total for token, p in probability.items()}
        for token, count in counts.items():
            probability[token] = probability.get(token, 0.0) + count / total
        latest.update(zip(tokens, places, strict=True))
    best = sorted(probability, key=lambda token: (-probability[token], -latest[token]))
    return Match(length, distinct, [(token, math.log(probability[token])) for token in best])


def _followers(index: SuffixIndex, earlier: SuffixIndex | None, suffix: Sequence[int]) -> Iterator[Followers]:
    """Yield what follows the last n tokens of a suffix, for n = 1, 2, ... Places in `earlier` are below 0."""
    if earlier is None:
        yield from map(index.followers, index.ranges(suffix))
        return
    behind = len(earlier.tokens)
    both = zip_longest(earlier.ranges(suffix), index.ranges(suffix))
    for n, (there, here) in enumerate(both, start=1):
        tokens, places = ([], []) if there is None or n < EARLIER_N else earlier.followers(there)
        more = ([], []) if here is None else index.followers(here)
        yield tokens + more[0], [place - behind for place in places] + more[1]
