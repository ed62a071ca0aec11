"""Several drafters as one: a node's children come from one joined distribution of all drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from flowedge.core.arrays import IntArray
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import (
    Drafter,
    DraftLayer,
    DraftPrefix,
    GrowRequest,
    check_requests,
)
from flowedge.drafting.lookup.matches import Match
from flowedge.drafting.lookup.mixing import first_odds, join_lookup, learnt_odds
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.model_drafter import Prediction, Predictor, TrueSpan
from flowedge.drafting.ranking import RankedNodes, ranked, with_added
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.taps import Taps

_FLOOR = -100.0  # the log-probability of tokens that a model cannot propose
_FIRST_WEIGHT = 0.6  # the weight of the first of several models; the others share the rest


def join_models(predictions: Sequence[Prediction], vocab: int) -> torch.Tensor:
    """The normalised weighted geometric mean of predictions, as log-probabilities [f, vocab]."""
    if len(predictions) == 1:
        return torch.log_softmax(_over_target(predictions[0], vocab), dim=-1)
    others = (1 - _FIRST_WEIGHT) / (len(predictions) - 1)
    total = torch.zeros_like(predictions[0].logits[:, :1], dtype=torch.float32)
    for i, prediction in enumerate(predictions):
        log_probs = torch.log_softmax(_over_target(prediction, vocab), dim=-1)
        total = total + (_FIRST_WEIGHT if i == 0 else others) * log_probs
    return torch.log_softmax(total, dim=-1)


def _over_target(prediction: Prediction, vocab: int) -> torch.Tensor:
    """The logits of all the target's tokens, float32 [f, vocab]."""
    logits = prediction.logits.float()
    if prediction.ids is None:
        return logits[:, :vocab]
    full = torch.full((len(logits), vocab), _FLOOR, device=logits.device)
    full[:, prediction.ids] = torch.log_softmax(logits, dim=-1)
    return full


@dataclass
class _JoinedSession:
    """The weight of lookup, as learnt from one session's tokens.

    Attributes:
        rows: the number of true rows that the models have.
        first: the number of true rows when the first tree was grown; None before.
        odds: the log-odds added to those of a match, after each true row from `first` on.
        ahead: rows that lookup has beyond those; matches: of lookup before each of them, from `first` on.
    """

    noise: SamplingParams | None
    rows: int = 0
    first: int | None = None
    odds: list[float] = field(default_factory=list)
    ahead: int = 0
    matches: list[Match] = field(default_factory=list)

    @property
    def latest_odds(self) -> float:
        return self.odds[-1] if self.odds else first_odds(self.noise)

    def truncate(self, rows: int) -> None:
        """Forget the true rows from `rows` on, which the models have, and those that lookup alone has."""
        self.rows, self.ahead = rows, 0
        self.matches.clear()
        if self.first is not None:
            del self.odds[max(rows - self.first, 0) :]


class JoinedDrafter:
    """A Drafter over models and lookup, whose distributions are joined before children are ranked.

    All drafters are asked about every frontier node, so that a branch may have tokens of several drafters.
    The weight of lookup beside the models is learnt from the drawn tokens, which are those after the
    session's first growth. Where a request asks lookup alone, lookup has true rows that the models lack: all
    requests have the rows behind those of the models, of which lookup takes what it has not.
    """

    def __init__(self, models: Sequence[Predictor], lookup: NGramDrafter | None, vocab_size: int) -> None:
        """Join one or more models, the best first, with lookup; `vocab_size` is the target's."""
        self._models = tuple(models)
        self._lookup = lookup
        self._vocab_size = vocab_size
        self._drafters: tuple[Drafter, ...] = (*models, *(() if lookup is None else (lookup,)))
        self.needs_features = any(drafter.needs_features for drafter in self._drafters)
        self.taps: Taps = next((drafter.taps for drafter in self._drafters if drafter.taps), ())
        self.weight_bytes = sum(drafter.weight_bytes for drafter in self._drafters)
        self._sessions: dict[str, _JoinedSession] = {}
        for drafter in self._drafters:
            if drafter.taps not in ((), self.taps):
                raise ValueError(f"one drafter taps the layers {drafter.taps}, the other {self.taps}")

    @property
    def draft_tokens(self) -> int:
        """The number of tokens that the best model proposes in every session."""
        return self._models[0].draft_tokens

    @property
    def looks_up(self) -> bool:
        """Whether lookup can be asked alone."""
        return self._lookup is not None

    @property
    def fingerprint(self) -> str:
        return "+".join(drafter.fingerprint for drafter in self._drafters)

    def session_bytes(self, capacity: int) -> int:
        return sum(drafter.session_bytes(capacity) for drafter in self._drafters)

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
        earlier: SuffixIndex | None = None,
    ) -> None:
        for drafter in self._drafters:
            drafter.open(session, capacity, first_token, noise, prefix, earlier)
        self._sessions[session] = _JoinedSession(noise, 0 if prefix is None else prefix.rows)

    def keep(self, session: str) -> None:
        self._sessions.pop(session, None)
        for drafter in self._drafters:
            drafter.keep(session)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
        for drafter in self._drafters:
            drafter.close(session)

    def free_idle(self) -> None:
        for drafter in self._drafters:
            drafter.free_idle()

    def rewind(self, session: str, rows: int) -> None:
        for drafter in self._drafters:
            drafter.rewind(session, rows)
        self._sessions[session].truncate(rows)

    def check_request(self, request: GrowRequest) -> None:
        if self._lookup is not None:
            self._lookup.check_request(self._for_lookup(request))
        elif request.lookup_alone:
            raise ValueError(f"session {request.session} asks lookup alone, but no lookup is joined")
        for model in () if request.lookup_alone else self._models:
            model.check_request(request)

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        check_requests(self.check_request, requests)
        before = [self._sessions[request.session].rows for request in requests]
        try:
            looked_up = iter(self._look_up([each for each in requests if each.lookup_alone]))
            joined = iter(self._grow([each for each in requests if not each.lookup_alone]))
        except Exception:
            for request, rows in zip(requests, before, strict=True):
                if request.added_rows:
                    self.rewind(request.session, rows)
            raise
        return [next(looked_up if request.lookup_alone else joined) for request in requests]

    def _look_up(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        """The layers of requests that ask lookup alone."""
        if self._lookup is None or not requests:
            return []
        for request in requests:
            if request.next_tokens is not None:
                self._extend_lookup(request.session, request.next_tokens)
        return [self._lookup.layer(each, self._sessions[each.session].latest_odds) for each in requests]

    def _for_lookup(self, request: GrowRequest) -> GrowRequest:
        """A request with those of its true rows that lookup has not."""
        state = self._sessions.get(request.session)
        if state is None or not state.ahead or request.next_tokens is None:
            return request
        return replace(request, features=None, next_tokens=request.next_tokens[state.ahead :])

    def _grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        """The layers of requests that ask all drafters."""
        if not requests:
            return []
        lessons = [
            self._lesson(request.session, request.next_tokens)
            for request in requests
            if request.next_tokens is not None
        ]
        by_model = [model.predict(requests) for model in self._models]
        self._learn(lessons)
        return ranked(
            [
                self._joined(request, found)
                for request, found in zip(requests, zip(*by_model, strict=True), strict=True)
            ]
        )

    def _joined(self, request: GrowRequest, found: Sequence[Prediction]) -> RankedNodes:
        """Begin a request's growth; return the nodes by the joined distribution of models and lookup."""
        state = self._sessions[request.session]
        state.rows += request.added_rows
        if not len(request.frontier.nodes):
            return RankedNodes(found[0].logits, request.width, None, [])
        if state.first is None:
            state.first = state.rows
        log_probs = join_models(found, self._vocab_size)
        if self._lookup is not None:
            matches = self._lookup.matches(request.session, request.growth, request.frontier)
            log_probs = join_lookup(log_probs, matches, state.latest_odds)
        changed = with_added(log_probs, None, request.added)
        return RankedNodes(changed, request.width, state.noise, found[0].positions)

    def _extend_lookup(self, session: str, next_tokens: IntArray) -> None:
        """Extend lookup by what it has not of the true rows behind those of the models.

        Its match before each token that can be learnt from is kept.
        """
        state, lookup = self._sessions[session], self._lookup
        if lookup is None:
            return
        known = len(next_tokens) if state.first is None else max(state.first - state.rows, 0)
        begun = max(known, state.ahead)
        lookup.append(session, next_tokens[state.ahead : begun])
        for i in range(begun, len(next_tokens)):
            state.matches.append(lookup.next_match(session))
            lookup.append(session, next_tokens[i : i + 1])
        state.ahead = len(next_tokens)

    def _lesson(self, session: str, next_tokens: IntArray) -> _Lesson:
        """Extend lookup; return its matches before the tokens that can be learnt from."""
        state = self._sessions[session]
        self._extend_lookup(session, next_tokens)
        matches, state.matches, state.ahead = state.matches, [], 0
        return _Lesson(session, state, next_tokens[len(next_tokens) - len(matches) :], matches)

    def _learn(self, lessons: Sequence[_Lesson]) -> None:
        """Learn from the latest tokens, which the models predicted when the rows before were added."""
        learnt = [lesson for lesson in lessons if lesson.matches]
        if not learnt:
            return
        spans = [lesson.span for lesson in learnt]
        by_model = [model.predict_true(spans) for model in self._models]
        drawn: list[torch.Tensor] = []
        for lesson, found in zip(learnt, zip(*by_model, strict=True), strict=True):
            joined = join_models(found, self._vocab_size)
            (tokens,) = to_device(joined.device, lesson.tokens)
            drawn.append(joined.gather(1, tokens[:, None])[:, 0])
        for lesson, log_probs in zip(learnt, to_host(*drawn), strict=True):
            lesson.apply(log_probs.tolist())


@dataclass(frozen=True, eq=False)
class _Lesson:
    """What the latest tokens of a session tell of lookup.

    Attributes:
        tokens: int64 [n]; matches: that of lookup before each token, none without lookup.
    """

    session: str
    state: _JoinedSession
    tokens: IntArray
    matches: list[Match] = field(default_factory=list)

    @property
    def span(self) -> TrueSpan:
        """The true rows whose states predicted the tokens."""
        assert self.state.first is not None
        start = self.state.first + len(self.state.odds) - 1
        return TrueSpan(self.session, start, start + len(self.matches))

    def apply(self, log_probs: Sequence[float]) -> None:
        """Add the odds after each token, whose log-probabilities by the models are given."""
        odds = self.state.odds
        for match, token, log_prob in zip(self.matches, self.tokens.tolist(), log_probs, strict=True):
            odds.append(learnt_odds(self.state.latest_odds, match, token, log_prob))
