"""The answer of a session: the tokens that are drawn, and those that are put out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from flowedge.core.logit_rules import RuledPath, TokenLikelihood
from flowedge.core.request import Request, Tokens
from flowedge.engine.stopping import OutputText, TextStream


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
