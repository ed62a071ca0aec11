"""The answer of a session: the tokens drawn, the text put out, and the end of the generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from flowedge.core.request import Request, Tokens
from flowedge.core.sampling import RuledPath, TokenLikelihood


class TextStream(Protocol):
    """Turns tokens into text as they come; `push` holds incomplete characters back until `flush`."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...

    def show(self, tokens: frozenset[int]) -> None:
        """Have the text of these special tokens put out as well; called before the first token."""


@dataclass(frozen=True)
class Accepted:
    """Tokens up to the end of the generation, the text they complete, and the reason if it has ended."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None


class OutputText:
    """Checks every token, in order, for the end of the generation.

    Text that could be the start of a stop string is held back until it is known not to be.
    """

    def __init__(self, request: Request, stream: TextStream) -> None:
        self._eos = request.eos
        self._stop = tuple(s for s in request.stop if s)
        self._room = request.max_new_tokens
        self._may_stop_at = request.max_new_tokens - request.min_tokens  # as room that is left
        self._stream = stream
        if request.shown_tokens:
            stream.show(request.shown_tokens)
        self._held = ""

    def push(self, tokens: tuple[int, ...]) -> Accepted:
        """Take in certain tokens; tokens after the end of the generation are left out."""
        text = ""
        for count, token in enumerate(tokens, start=1):
            self._room -= 1
            if token in self._eos:
                return Accepted(tokens[:count], text + self._rest(), "eos")
            self._held += self._stream.push(token)
            stopped = self._may_stop and self._cut()
            text += self._release()
            if stopped:
                return Accepted(tokens[:count], text, "stop")
            if self._room == 0:
                return Accepted(tokens[:count], text + self._rest(), "length")
        return Accepted(tokens, text, None)

    @property
    def _may_stop(self) -> bool:
        return self._room <= self._may_stop_at

    def _rest(self) -> str:
        self._held += self._stream.flush()
        if self._may_stop:
            self._cut()
        rest, self._held = self._held, ""
        return rest

    def _cut(self) -> bool:
        """Cut the held text at the first stop string; return whether it contained one."""
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if not found:
            return False
        self._held = self._held[: min(found)]
        self._stop = ()
        return True

    def _release(self) -> str:
        """Release the held text, except an end that could be the start of a stop string."""
        keep = max(
            (
                size
                for stop in (self._stop if self._may_stop else ())
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


class SessionAnswer:
    """The tokens of an answer.

    Attributes:
        finish_reason: why the answer has ended; None before its end.
    """

    def __init__(self, request: Request, text: TextStream) -> None:
        self.finish_reason: str | None = None
        self._request = request
        self._output = OutputText(request, text)
        self._drawn: list[int] = []  # only with rules
        self._likelihoods: list[TokenLikelihood] = []  # of the tokens that are not put out yet

    def draw(self, tokens: Sequence[int], likelihoods: Sequence[TokenLikelihood]) -> None:
        """Take in tokens that the target has drawn, in order, with their likelihoods if there are any."""
        if self._request.rules is not None:
            self._drawn += tokens
            self._likelihoods += likelihoods

    @property
    def path(self) -> RuledPath | None:
        """The rules, and the answer so far; None without rules."""
        rules = self._request.rules
        return None if rules is None else RuledPath(rules, tuple(self._drawn))

    def path_to(self, position: int) -> RuledPath | None:
        """Return the rules, and the answer up to a position; None if no rule changes draws."""
        rules, first = self._request.rules, len(self._request.prompt)
        if rules is None or not rules.changes_draws:
            return None
        return RuledPath(rules, tuple(self._drawn[: position + 1 - first]))

    def put_out(self, tokens: tuple[int, ...], now: float) -> Tokens:
        """Return the output of tokens that were drawn, up to the end of the answer."""
        accepted = self._output.push(tokens)
        self.finish_reason = accepted.reason
        likelihoods = tuple(islice(self._likelihoods, len(accepted.tokens)))
        del self._likelihoods[: len(likelihoods)]
        return Tokens(self._request.session, accepted.tokens, accepted.text, now, likelihoods)
