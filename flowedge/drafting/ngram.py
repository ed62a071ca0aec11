"""Drafting by prompt lookup: the tokens that followed the same n-gram earlier in the session."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from flowedge.core.arrays import IntArray
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import (
    ROOT,
    DrafterSession,
    DraftLayer,
    DraftPrefix,
    Frontier,
    GrowRequest,
    SessionDrafter,
    check_requests,
    padded_layer,
)
from flowedge.drafting.ranking import RULED_OUT, best_drawn_of
from flowedge.models.taps import Taps

MAX_N = 12
MIN_N = 1
INDEXED_N = 4  # tokens of the longest n-grams in the index; longer matches are searched among their places
ENTRY_BYTES = 400  # bytes of one n-gram's entry in the index, measured on CPython 3.11

Gram = tuple[int, ...]


@dataclass
class NGramIndex:
    """The places of each n-gram of a text, by the token that follows the n-gram.

    A place is the index of the following token.

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
        """The places of each token that follows the n-gram; empty for an n-gram that is not in the text."""
        return self._followers.get(gram, {})

    def _grams_before(self, place: int) -> list[Gram]:
        longest = min(self.max_n, place)
        return [tuple(self.tokens[place - n : place]) for n in range(self.min_n, longest + 1)]


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


def find_match(index: NGramIndex, suffix: Gram, max_n: int) -> Match:
    """The tokens that may follow a suffix, by its matches of at most `max_n` tokens.

    The estimate is Witten and Bell's. After the last n tokens of the suffix, let t occur c(t) times, all
    tokens C times, and T different tokens. Then

        p_n(t) = (c(t) + T * p_{n-1}(t)) / (C + T),    p below min_n = 0

    so T / (C + T) of the mass is left to shorter matches and, at the shortest, to tokens that never followed.
    The longest match weighs most, and a single occurrence is no certainty. Of equal candidates, the one that
    followed the longest match last comes first.
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
    """The places of matches of n tokens, out of those of n - 1 tokens: `before` is the token in front."""
    found = {
        token: [place for place in places if place >= n and text[place - n] == before]
        for token, places in followers.items()
    }
    return {token: places for token, places in found.items() if places}


@dataclass(kw_only=True)
class _NGramSession(DrafterSession):
    """A session with the paths of its growth.

    Attributes:
        suffixes: the last tokens of the path to each node, by name; depths: the nodes' depths.
    """

    index: NGramIndex
    suffixes: dict[int, Gram] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)

    @property
    def true_rows(self) -> int:
        return len(self.index.tokens) - 1

    @property
    def known_nodes(self) -> Collection[int]:
        return self.suffixes.keys()

    def truncate(self, rows: int) -> None:
        self.index.truncate(rows + 1)


class NGramDrafter(SessionDrafter[_NGramSession]):
    """A Drafter without weights, for output that repeats the prompt or itself."""

    needs_features = False
    taps: Taps = ()
    weight_bytes = 0

    def __init__(self, max_n: int = MAX_N, min_n: int = MIN_N) -> None:
        """Look for matches of `min_n` to `max_n` tokens."""
        if not 1 <= min_n <= max_n:
            raise BadRequestError(f"n-grams of {min_n} to {max_n} tokens cannot be looked up")
        super().__init__()
        self._max_n = max_n
        self._indexed_n = max(min(max_n, INDEXED_N), min_n)
        self._min_n = min_n

    @property
    def fingerprint(self) -> str:
        return f"ngram-{self._min_n}-{self._max_n}"

    def session_bytes(self, capacity: int) -> int:
        return (capacity + 1) * (self._indexed_n - self._min_n + 1) * ENTRY_BYTES

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
    ) -> None:
        source, rows = self._source(prefix, capacity, first_token)
        index = NGramIndex(self._indexed_n, self._min_n)
        for token in [first_token] if source is None else source.index.tokens[: rows + 1]:
            index.append(token)
        state = _NGramSession(capacity=capacity, first_token=first_token, noise=noise, index=index)
        self._begin(session, state)

    def append(self, session: str, next_tokens: IntArray) -> None:
        """Add true rows, of which lookup needs the tokens alone: int64 [n].

        Raises:
            CapacityError: when the session has no capacity for the rows.
        """
        state = self._with_capacity(session, len(next_tokens))
        state.discard_growth()
        for token in next_tokens.tolist():
            state.index.append(token)

    def _grow(self, request: GrowRequest) -> DraftLayer:
        """The layer of a request whose true rows are there."""
        state, frontier, width = self._sessions[request.session], request.frontier, request.width
        children: list[list[tuple[int, float]]] = []
        matches = self.matches(request.session, request.growth, frontier)
        for row, (node, match) in enumerate(zip(frontier.nodes, matches, strict=True)):
            found = match.candidates
            if request.added is not None:
                ruled = request.added[row]
                found = [(token, log_prob) for token, log_prob in found if ruled[token] > RULED_OUT]
            if state.noise is not None:
                position = len(state.index.tokens) + state.depths[node]
                found = best_drawn_of(found, width, state.noise, position)
            children.append(found[:width])
        return padded_layer(children)

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        check_requests(self.check_request, requests)
        for request in requests:
            if request.next_tokens is not None:
                self.append(request.session, request.next_tokens)
        return [self._grow(each) if len(each.frontier.nodes) else padded_layer([]) for each in requests]

    def matches(self, session: str, growth: int, frontier: Frontier) -> list[Match]:
        """The match at each frontier node of a growth.

        Raises:
            ValueError: when a node's parent was in no frontier of the growth.
        """
        state = self._sessions[session]
        if growth != state.growth:
            state.growth = growth
            state.suffixes = {ROOT: tuple(state.index.tokens[-self._max_n :])}
            state.depths = {ROOT: 0}
        found: list[Match] = []
        for node, parent, token in zip(frontier.nodes, frontier.parents, frontier.tokens, strict=True):
            if node != ROOT:
                if parent not in state.suffixes:
                    raise ValueError(f"node {parent} is not of growth {growth}")
                state.suffixes[node] = (*state.suffixes[parent], token)[-self._max_n :]
                state.depths[node] = state.depths[parent] + 1
            found.append(find_match(state.index, state.suffixes[node], self._max_n))
        return found

    def next_match(self, session: str) -> Match:
        index = self._sessions[session].index
        return find_match(index, tuple(index.tokens[-self._max_n :]), self._max_n)
