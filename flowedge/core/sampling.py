"""Sampling parameters and the verification walk. Imports no numpy.

Sampling follows the Gumbel-max rule: token(t) = argmax_v(log p_t(v) + g(seed, t, v)), with the noise g of
core/rules/gumbel_noise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.grammar import GrammarSource

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6  # logits divided by less could exceed the range of a float64


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    Raises:
        BadRequestError: when a value is out of range.
    """

    temperature: float = 0.0  # 0 takes the most likely token
    top_k: int = 0  # 0 keeps all tokens
    top_p: float = 1.0  # 1 keeps all tokens
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or MIN_TEMPERATURE <= self.temperature < inf):
            raise BadRequestError(
                f"temperature is {self.temperature}; it must be 0, or finite and {MIN_TEMPERATURE} or more"
            )
        if self.top_k < 0:
            raise BadRequestError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise BadRequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadRequestError(f"seed is {self.seed}; it must be from 0 to {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Walk:
    """A verified path: the accepted rows, root first, and the token drawn after the last of them.

    Attributes:
        likelihoods: of the token drawn after each accepted row, if they were asked for.
        error: why no token can be drawn after `token`; it ends a session whose answer does not end there.
    """

    accepted: tuple[int, ...]
    token: int
    likelihoods: tuple[TokenLikelihood, ...] = ()
    error: FlowEdgeError | None = None


class PathWalk:
    """A walk of the target's draws through the returned rows of a draft tree (flowspec, section 3.3)."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Begin at the root; arguments as in `walk`."""
        self._tokens = tokens
        edges = zip(parents, tokens, strict=True)
        self._children = {(parent, token): row for row, (parent, token) in enumerate(edges)}
        self._accepted = [0]
        self._token: int | None = None

    @property
    def row(self) -> int:
        """The row after which the next token is drawn."""
        return self._accepted[-1]

    def follow(self, token: int) -> bool:
        """Take the token that the target draws after `row`; return whether a row has it, which is next."""
        row = self._children.get((self.row, token))
        if row is None:
            self._token = token
            return False
        self._accepted.append(row)
        return True

    @property
    def walked(self) -> Walk:
        """The path, after `follow` has returned False."""
        assert self._token is not None
        return Walk(tuple(self._accepted), self._token)

    def broken_off(self, error: FlowEdgeError) -> Walk:
        """Return the path before `row`, which is below the root, when an error forbids a draw after it."""
        *accepted, row = self._accepted
        return Walk(tuple(accepted), self._tokens[row], error=error)


def walk(tokens: Sequence[int], parents: Sequence[int], draw: Callable[[int], int]) -> Walk:
    """Follow the target's draws through the returned rows of a draft tree.

    Args:
        tokens: token of each row; row 0 is the root.
        parents: parent row of each row, below the row itself; -1 for the root.
        draw: returns the token that the target draws after a row; called for accepted rows only.

    Returns:
        The path from the root along rows whose tokens were drawn, and the first drawn token without a row.
    """
    path = PathWalk(tokens, parents)
    while path.follow(draw(path.row)):
        pass
    return path.walked


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
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 10.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_LIKELIEST = 20


@dataclass(frozen=True)
class LogitRules:
    """Rules by which a token is drawn that depend on the tokens of the answer before it.

    The repetition penalty comes first. Then the bias of each token is added, and the other penalties are
    subtracted. After that, tokens that the grammar rules out, and ends that come too early, are removed, and
    tokens that `min_p` leaves out. Temperature, filters and noise come last, as without rules.

    Attributes:
        presence_penalty: for a token that is in the answer so far.
        frequency_penalty: for each time that a token is in the answer so far.
        logit_bias: token ids, ascending, each with what is added to its logit.
        logprobs: how many likeliest tokens are told of with each token; None where no log-probability is.
        repetition_penalty: for a token of the prompt or the answer: divides a positive logit, and multiplies
            a negative one. 1 changes nothing.
        prompt_tokens: the prompt's tokens, each once; empty without a repetition penalty.
        min_p: the probability, as a share of the likeliest token's, below which a token is not drawn.
        min_tokens: of the answer, before which none of the `ends` is drawn, unless the grammar allows
            nothing else.

    Raises:
        BadRequestError: when a value is out of range.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: GrammarSource | None = None
    repetition_penalty: float = 1.0
    prompt_tokens: tuple[int, ...] = ()
    min_p: float = 0.0
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

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
        if not MIN_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            raise BadRequestError(
                f"repetition_penalty is {self.repetition_penalty:g}; it must be from "
                f"{MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}"
            )
        if not 0 <= self.min_p <= 1:
            raise BadRequestError(f"min_p is {self.min_p}; it must be from 0 to 1")

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return self.changes_draws or self.logprobs is not None

    @property
    def changes_draws(self) -> bool:
        """Whether another token may be drawn than without these rules."""
        forbids = self.grammar is not None or self.min_p > 0 or (self.min_tokens > 0 and bool(self.ends))
        return self.penalises or bool(self.logit_bias) or forbids

    @property
    def penalises(self) -> bool:
        """Whether tokens of the answer count."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

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
