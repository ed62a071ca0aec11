"""What is done to the logits of an answer before tokens are drawn, and what is told of them."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.core.grammar_source import GrammarSource


@dataclass(frozen=True)
class TokenLikelihood:
    """How likely a token was, by the model alone: before biases, penalties, grammar and temperature.

    Attributes:
        logprob: natural logarithm of its probability.
        likeliest: the likeliest tokens in its place with theirs, the likeliest first.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_LIKELIEST = 20


@dataclass(frozen=True)
class LogitRules:
    """Rules by which a token is drawn that depend on the tokens of the answer before it.

    Of each logit, the bias of the token is added first, then the penalties are subtracted. After that, tokens
    that the grammar rules out are removed. Temperature, filters and noise come last, as without rules.

    Attributes:
        presence_penalty: for a token that is in the answer so far.
        frequency_penalty: for each time that a token is in the answer so far.
        logit_bias: token ids, ascending, each with what is added to its logit.
        logprobs: how many likeliest tokens are told of with each token; None where no log-probability is.

    Raises:
        BadRequestError: when a value is out of range.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: GrammarSource | None = None

    def __post_init__(self) -> None:
        _check_range("presence_penalty", self.presence_penalty, MAX_PENALTY)
        _check_range("frequency_penalty", self.frequency_penalty, MAX_PENALTY)
        if len(self.logit_bias) > MAX_BIASES:
            raise BadRequestError(
                f"logit_bias has {len(self.logit_bias)} tokens; at most {MAX_BIASES} are taken"
            )
        for token, bias in self.logit_bias:
            _check_range(f"logit_bias of token {token}", bias, MAX_BIAS)
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LIKELIEST:
            raise BadRequestError(f"logprobs is {self.logprobs}; it must be from 0 to {MAX_LIKELIEST}")

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return self.changes_draws or self.logprobs is not None

    @property
    def changes_draws(self) -> bool:
        """Whether another token may be drawn than without these rules."""
        return self.penalises or bool(self.logit_bias) or self.grammar is not None

    @property
    def penalises(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_tokens(self, vocab_size: int) -> None:
        """Raise BadRequestError if a token id of `logit_bias` is out of the vocabulary."""
        for token, _ in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise BadRequestError(
                    f"logit_bias names token {token}; the model has tokens 0 to {vocab_size - 1}"
                )


def _check_range(name: str, value: float, most: float) -> None:
    if not -most <= value <= most:
        raise BadRequestError(f"{name} is {value}; it must be from {-most:g} to {most:g}")


@dataclass(frozen=True)
class RuledPath:
    """The rules of an answer, and its tokens up to the root of a draft tree.

    Attributes:
        tokens: of the answer, the root's token last; none before the first token is drawn.
    """

    rules: LogitRules
    tokens: tuple[int, ...]
