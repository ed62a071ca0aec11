"""Several drafters as one: a node's children come from one joined distribution of all drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter, DraftLayer, Frontier
from flowedge.drafting.joined_distribution import first_odds, join_lookup, join_models, learnt_odds
from flowedge.drafting.model_drafter import Predictor
from flowedge.drafting.ngram import Match, NGramDrafter
from flowedge.drafting.ranking import ranked
from flowedge.models.copies import to_device, to_host
from flowedge.models.layers.taps import Taps


@dataclass
class _JoinedSession:
    """The weight of lookup, as learnt from one session's tokens.

    Attributes:
        rows: the number of true rows.
        first: the number of true rows when the first tree was grown; None before.
        odds: the log-odds added to those of a match, after each true row from `first` on.
    """

    noise: SamplingParams | None
    rows: int = 0
    first: int | None = None
    odds: list[float] = field(default_factory=list)

    @property
    def latest_odds(self) -> float:
        return self.odds[-1] if self.odds else first_odds(self.noise)


class JoinedDrafter:
    """A Drafter over models and lookup, whose distributions are joined before children are ranked.

    All drafters are asked about every frontier node, so that a branch may have tokens of several drafters.
    The weight of lookup beside the models is learnt from the drawn tokens, which are those after the
    session's first growth.
    """

    def __init__(self, models: Sequence[Predictor], lookup: NGramDrafter | None, vocab_size: int) -> None:
        """Join one or more models, the best first, with lookup; `vocab_size` is the target's."""
        self._models = tuple(models)
        self._lookup = lookup
        self._vocab_size = vocab_size
        self._parts: tuple[Drafter, ...] = (*models, *(() if lookup is None else (lookup,)))
        self.needs_features = any(part.needs_features for part in self._parts)
        self.taps: Taps = next((part.taps for part in self._parts if part.taps), ())
        self.weight_bytes = sum(part.weight_bytes for part in self._parts)
        self._sessions: dict[str, _JoinedSession] = {}
        for part in self._parts:
            if part.taps not in ((), self.taps):
                raise ValueError(f"one drafter taps the layers {part.taps}, the other {self.taps}")

    @property
    def draft_tokens(self) -> int:
        """The number of tokens that the best model proposes in every session."""
        return self._models[0].draft_tokens

    @property
    def fingerprint(self) -> str:
        return "+".join(part.fingerprint for part in self._parts)

    def session_bytes(self, capacity: int) -> int:
        return sum(part.session_bytes(capacity) for part in self._parts)

    def open(
        self, session: str, capacity: int, first_token: int, noise: SamplingParams | None = None
    ) -> None:
        self._sessions[session] = _JoinedSession(noise)
        for part in self._parts:
            part.open(session, capacity, first_token, noise)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
        for part in self._parts:
            part.close(session)

    def free_idle(self) -> None:
        for part in self._parts:
            part.free_idle()

    def extend(self, session: str, features: Payload | None, next_tokens: IntArray) -> None:
        state = self._sessions[session]
        known = len(next_tokens) if state.first is None else max(state.first - state.rows, 0)
        matches = self._extend_lookup(session, next_tokens, known)
        for model in self._models:
            model.extend(session, features, next_tokens)
        if matches:
            self._learn(session, state, matches, next_tokens[known:])
        state.rows += len(next_tokens)

    def rewind(self, session: str, rows: int) -> None:
        for part in self._parts:
            part.rewind(session, rows)
        state = self._sessions[session]
        state.rows = rows
        if state.first is not None:
            del state.odds[max(rows - state.first, 0) :]

    def grow(self, session: str, growth: int, frontier: Frontier, width: int) -> DraftLayer:
        state = self._sessions[session]
        if state.first is None:
            state.first = state.rows
        found = [model.predict(session, growth, frontier) for model in self._models]
        log_probs = join_models(found, self._vocab_size)
        if self._lookup is not None:
            matches = self._lookup.matches(session, growth, frontier)
            log_probs = join_lookup(log_probs, matches, state.latest_odds)
        return ranked(log_probs, width, state.noise, found[0].positions)

    def _extend_lookup(self, session: str, next_tokens: IntArray, known: int) -> list[Match]:
        """Extend the lookup; return its match before each token but the first `known`."""
        if self._lookup is None:
            return []
        self._lookup.extend(session, None, next_tokens[:known])
        matches: list[Match] = []
        for i in range(known, len(next_tokens)):
            matches.append(self._lookup.next_match(session))
            self._lookup.extend(session, None, next_tokens[i : i + 1])
        return matches

    def _learn(
        self, session: str, state: _JoinedSession, matches: Sequence[Match], next_tokens: IntArray
    ) -> None:
        """Learn from the latest tokens, which the models predicted when the rows before were added."""
        assert state.first is not None
        start = state.first + len(state.odds) - 1
        found = [model.predict_true(session, start, start + len(matches)) for model in self._models]
        joined = join_models(found, self._vocab_size)
        (drawn,) = to_device(joined.device, next_tokens)
        (log_probs,) = to_host(joined.gather(1, drawn[:, None])[:, 0])
        for match, token, log_prob in zip(matches, next_tokens.tolist(), log_probs.tolist(), strict=True):
            state.odds.append(learnt_odds(state.latest_odds, match, token, log_prob))
