"""Drafting by lookup: the tokens that followed the same n-gram in the session, or in earlier answers."""

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
from flowedge.drafting.lookup.matches import Match, find_match
from flowedge.drafting.lookup.mixing import copy_share
from flowedge.drafting.ranking import RULED_OUT, best_drawn_of
from flowedge.drafting.suffix_index import MAX_N, TOKEN_BYTES, SuffixIndex
from flowedge.models.taps import Taps

MIN_N = 1
_LEAST_SHARE = 1e-6  # of matches that are copies: whatever the odds, its logarithm stays finite

Gram = tuple[int, ...]


@dataclass(kw_only=True)
class _NGramSession(DrafterSession):
    """A session with the paths of its growth.

    Attributes:
        index: of the session's text; earlier: of answers before it.
        suffixes: the last tokens of the path to each node, by name; depths: the nodes' depths.
    """

    index: SuffixIndex
    earlier: SuffixIndex | None
    suffixes: dict[int, Gram] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)

    @property
    def true_rows(self) -> int:
        return self.index.length - 1

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
        if not 1 <= min_n <= max_n <= MAX_N:
            raise BadRequestError(f"n-grams of {min_n} to {max_n} tokens cannot be looked up")
        super().__init__()
        self._max_n = max_n
        self._min_n = min_n

    @property
    def fingerprint(self) -> str:
        return f"ngram-{self._min_n}-{self._max_n}"

    def session_bytes(self, capacity: int) -> int:
        return capacity * TOKEN_BYTES

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
        earlier: SuffixIndex | None = None,
    ) -> None:
        source, rows = self._source(prefix, capacity, first_token)
        if source is None:
            index = SuffixIndex()
            index.extend([first_token])
        else:
            index = source.index.copy()
            index.truncate(rows + 1)
        self._begin(
            session,
            _NGramSession(
                capacity=capacity, first_token=first_token, noise=noise, index=index, earlier=earlier
            ),
        )

    def keep(self, session: str) -> None:
        super().keep(session)
        if session in self._kept:
            self._kept[session].earlier = None  # which no prefix is copied with, and which may be large

    def append(self, session: str, next_tokens: IntArray) -> None:
        """Add true rows, of which lookup needs the tokens alone: int64 [n].

        Raises:
            CapacityError: when the session has no capacity for the rows.
        """
        state = self._with_capacity(session, len(next_tokens))
        state.discard_growth()
        state.index.extend(next_tokens.tolist())

    def layer(self, request: GrowRequest, odds: float = 0.0) -> DraftLayer:
        """Return the layer of a request whose true rows are there.

        odds: added to the log-odds that a match is a copy (see `copy_share`).
        """
        state, frontier, width = self._sessions[request.session], request.frontier, request.width
        children: list[list[tuple[int, float]]] = []
        matches = self.matches(request.session, request.growth, frontier)
        for row, (node, match) in enumerate(zip(frontier.nodes, matches, strict=True)):
            share = math.log(max(copy_share(match, odds), _LEAST_SHARE))
            found = [(token, log_prob + share) for token, log_prob in match.candidates]
            if request.added is not None:
                ruled = request.added[row]
                found = [(token, log_prob) for token, log_prob in found if ruled[token] > RULED_OUT]
            if state.noise is not None:
                position = state.index.length + state.depths[node]
                found = best_drawn_of(found, width, state.noise, position)
            children.append(found[:width])
        return padded_layer(children)

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        check_requests(self.check_request, requests)
        for request in requests:
            if request.next_tokens is not None:
                self.append(request.session, request.next_tokens)
        return [self.layer(each) if len(each.frontier.nodes) else padded_layer([]) for each in requests]

    def matches(self, session: str, growth: int, frontier: Frontier) -> list[Match]:
        """The match at each frontier node of a growth.

        Raises:
            ValueError: when a node's parent was in no frontier of the growth.
        """
        state = self._sessions[session]
        if growth != state.growth:
            state.growth = growth
            state.suffixes = {ROOT: state.index.end(self._max_n)}
            state.depths = {ROOT: 0}
        found: list[Match] = []
        for node, parent, token in zip(frontier.nodes, frontier.parents, frontier.tokens, strict=True):
            if node != ROOT:
                if parent not in state.suffixes:
                    raise ValueError(f"node {parent} is not of growth {growth}")
                state.suffixes[node] = (*state.suffixes[parent], token)[-self._max_n :]
                state.depths[node] = state.depths[parent] + 1
            found.append(self._match(state, state.suffixes[node]))
        return found

    def next_match(self, session: str) -> Match:
        """Return the match at the end of a session's text."""
        state = self._sessions[session]
        return self._match(state, state.index.end(self._max_n))

    def _match(self, state: _NGramSession, suffix: Gram) -> Match:
        return find_match(state.index, suffix, self._min_n, self._max_n, state.earlier)
