"""Drafting by looking up in the session's own tokens what followed there (prompt lookup)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, DraftLayer, padded_layer
from flowedge.drafting.ranking import best_drawn_of
from flowedge.models.layers.taps import Taps

MAX_N = 12
MIN_N = 1
INDEXED_N = 4  # tokens of the longest n-grams in the index; longer matches are found among those of these
ENTRY_BYTES = 400  # of one n-gram's entry in the index, about: measured on CPython 3.11

Gram = tuple[int, ...]


@dataclass
class NGramIndex:
    """Where each n-gram of a text is, by the token that follows it.

    Attributes:
        max_n, min_n: tokens of the longest and the shortest n-grams.
        tokens: the text.
    """

    max_n: int
    min_n: int
    tokens: list[int] = field(default_factory=list)
    _followers: dict[Gram, dict[int, list[int]]] = field(default_factory=dict)  # places, ascending

    def append(self, token: int) -> None:
        place = len(self.tokens)
        for gram in self._grams_before(place):
            self._followers.setdefault(gram, {}).setdefault(token, []).append(place)
        self.tokens.append(token)

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        while len(self.tokens) > length:
            token = self.tokens.pop()
            for gram in self._grams_before(len(self.tokens)):
                followers = self._followers[gram]
                followers[token].pop()
                if not followers[token]:
                    del followers[token]
                if not followers:
                    del self._followers[gram]

    def followers(self, gram: Gram) -> dict[int, list[int]]:
        """Where each token that follows the n-gram somewhere does so; empty for one that is not there."""
        return self._followers.get(gram, {})

    def _grams_before(self, place: int) -> list[Gram]:
        longest = min(self.max_n, place)
        return [tuple(self.tokens[place - n : place]) for n in range(self.min_n, longest + 1)]


@dataclass(frozen=True)
class Match:
    """What followed where the end of a path stood before.

    Attributes:
        length: tokens of the longest match; 0 where nothing matches.
        distinct: different tokens that followed the longest match.
        candidates: (token, log-probability) of each token that may follow, best first.
    """

    length: int
    distinct: int
    candidates: list[tuple[int, float]]


def find_match(index: NGramIndex, suffix: Gram, max_n: int) -> Match:
    """What may follow the suffix, by its matches of at most `max_n` tokens.

    The estimate is Witten and Bell's: with c(t) occurrences of t after the last n tokens of the suffix,
    C of all and T of them different,

        p_n(t) = (c(t) + T * p_{n-1}(t)) / (C + T),    p below min_n = 0

    so that T / (C + T) of the mass is left to shorter matches and, at the shortest, to tokens that never
    followed. The longest match thus weighs most, a single occurrence is not taken for a certainty, and the
    figures can stand beside a model's. Ties go to what followed the longest match last.
    """
    probability: dict[int, float] = {}
    latest: dict[int, int] = {}
    length = distinct = 0
    followers: dict[int, list[int]] = {}
    for n in range(index.min_n, min(max_n, len(suffix)) + 1):
        if n <= index.max_n:
            followers = index.followers(suffix[len(suffix) - n :])
        else:
            followers = _longer(index.tokens, followers, n, suffix[len(suffix) - n])
        if not followers:
            break
        length, distinct = n, len(followers)
        total = sum(map(len, followers.values())) + distinct
        probability = {token: distinct * p / total for token, p in probability.items()}
        for token, places in followers.items():
            probability[token] = probability.get(token, 0.0) + len(places) / total
            latest[token] = places[-1]
    best = sorted(probability, key=lambda token: (-probability[token], -latest[token]))
    return Match(length, distinct, [(token, math.log(probability[token])) for token in best])


def _longer(
    text: Sequence[int], followers: dict[int, list[int]], n: int, before: int
) -> dict[int, list[int]]:
    """Those of the places that match n - 1 tokens that have the token `before` in front of them as well."""
    found = {
        token: [place for place in places if place >= n and text[place - n] == before]
        for token, places in followers.items()
    }
    return {token: places for token, places in found.items() if places}


@dataclass
class _NGramSession:
    index: NGramIndex
    capacity: int
    noise: SamplingParams | None = None
    growth: int | None = None
    suffixes: dict[int, Gram] = field(default_factory=dict)  # by node: the last tokens of the path to it
    depths: dict[int, int] = field(default_factory=dict)


class NGramDrafter:
    """A Drafter without weights, for output that repeats the prompt or itself; deterministic."""

    needs_features = False
    taps: Taps = ()
    weight_bytes = 0

    def __init__(self, max_n: int = MAX_N, min_n: int = MIN_N) -> None:
        """max_n, min_n: tokens of the longest and the shortest match. BadRequestError out of order."""
        if not 1 <= min_n <= max_n:
            raise BadRequestError(f"n-grams of {min_n} to {max_n} tokens cannot be looked up")
        self._max_n = max_n
        self._indexed_n = max(min(max_n, INDEXED_N), min_n)
        self._min_n = min_n
        self._sessions: dict[str, _NGramSession] = {}

    @property
    def fingerprint(self) -> str:
        return f"ngram-{self._min_n}-{self._max_n}"

    def session_bytes(self, capacity: int) -> int:
        return (capacity + 1) * (self._indexed_n - self._min_n + 1) * ENTRY_BYTES

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        index = NGramIndex(self._indexed_n, self._min_n)
        index.append(first_token)
        self._sessions[session] = _NGramSession(index, capacity, noise)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)

    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:  # noqa: ARG002
        state = self._sessions[session]
        if len(state.index.tokens) - 1 + len(next_tokens) > state.capacity:
            raise CapacityError(f"the drafter's session {session} holds {state.capacity} rows")
        state.growth = None
        for token in next_tokens.tolist():
            state.index.append(token)

    def rewind(self, session: str, rows: int) -> None:
        state = self._sessions[session]
        known = len(state.index.tokens) - 1
        if not 0 <= rows <= known:
            raise ValueError(f"session {session} has {known} true rows and cannot go back to {rows}")
        state.growth = None
        state.index.truncate(rows + 1)

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer:
        state = self._sessions[session]
        children: list[list[tuple[int, float]]] = []
        matches = self.matches(session, growth, nodes, parents, tokens)
        for node, match in zip(nodes, matches, strict=True):
            found = match.candidates
            if state.noise is not None:
                position = len(state.index.tokens) + state.depths[node]
                found = best_drawn_of(found, width, state.noise, position)
            children.append(found[:width])
        return padded_layer(children)

    def matches(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> list[Match]:
        """What may follow each frontier node, given as for `grow`."""
        state = self._sessions[session]
        if growth != state.growth:
            state.growth = growth
            state.suffixes = {ROOT: tuple(state.index.tokens[-self._max_n :])}
            state.depths = {ROOT: 0}
        found: list[Match] = []
        for node, parent, token in zip(nodes, parents, tokens, strict=True):
            if node != ROOT:
                if parent not in state.suffixes:
                    raise ValueError(f"node {parent} is not of growth {growth}")
                state.suffixes[node] = (*state.suffixes[parent], token)[-self._max_n :]
                state.depths[node] = state.depths[parent] + 1
            found.append(find_match(state.index, state.suffixes[node], self._max_n))
        return found

    def next_match(self, session: str) -> Match:
        """What may follow the last true token."""
        index = self._sessions[session].index
        return find_match(index, tuple(index.tokens[-self._max_n :]), self._max_n)
