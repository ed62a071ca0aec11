"""A request to generate, as the draft node holds it, and the outputs that answer it. Imports no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.pipeline_config import DRAFT_NODE, VerificationPlace
from flowedge.core.sampling import LogitRules, SamplingParams, TokenLikelihood

if TYPE_CHECKING:
    from flowedge.core.arrays import Payload

Noise: TypeAlias = Literal["plain", "shared"]
NOISES: tuple[Noise, ...] = get_args(Noise)
Priority: TypeAlias = Literal["interactive", "normal", "batch"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)  # the most urgent first
DEFAULT_PRIORITY: Priority = "normal"
BATCH: Priority = "batch"  # gives its room to others
DEFAULT_STRATEGY = "auto"
LEAST_GAIN = 1.05  # over plain decoding, from which on drafts are said to be faster
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256  # characters


def check_stop(stop: Sequence[str]) -> None:
    """Raise BadRequestError for too many stop strings, for an empty one, and for one that is too long."""
    for number, text in enumerate(stop, 1):
        if not text:
            raise BadRequestError(f"stop string {number} is empty")
    if len(stop) > MAX_STOP_STRINGS or any(len(text) > MAX_STOP_LENGTH for text in stop):
        raise BadRequestError(
            f"at most {MAX_STOP_STRINGS} stop strings of up to {MAX_STOP_LENGTH} characters are allowed"
        )


def parse_noise(text: str) -> Noise:
    """Return the kind of noise that a text names.

    Raises:
        BadRequestError: when the text names none.
    """
    for noise in NOISES:
        if noise == text:
            return noise
    raise BadRequestError(f"noise is {text!r}; it must be {' or '.join(NOISES)}")


def draft_noise(sampling: SamplingParams, noise: Noise) -> SamplingParams | None:
    """Return the noise that a drafter adds to its ranking of tokens, if any (see Drafter.open)."""
    return sampling if noise == "shared" and not sampling.greedy else None


@dataclass(frozen=True)
class Request:
    """One generation.

    Attributes:
        prompt: token ids, at least one.
        answered: the first tokens of the answer, which were put out before; the answer goes on behind them.
            max_new_tokens and min_tokens count them. A draw depends on the seed and its position alone, so
            the tokens behind them are those that would have come without a break.
        stop: strings at which generation ends; neither the string nor any text after it is put out.
        eos: token ids at which generation ends; the id is put out as a token, but not as text.
        noise: "shared" ranks draft tokens with the noise of the target's draws, above temperature 0.
        rows_only: compute the prompt, put out its rows and generate nothing. max_new_tokens has no effect
            then, and the strategy must be one that does not draft.
        priority: by which requests are opened that wait for room; it changes no token.
        reuses_prefix: whether rows of other sessions may be copied for it, and its rows for them.
        shown_tokens: special tokens whose text is put out; that of others is not.
        rules: for the logits and about them; None where there is no rule.
        fit_context: whether max_new_tokens is lowered to what the context has room for.
        min_tokens: tokens of the answer before which no stop string ends it.
        scores_prompt: whether the likelihoods of the prompt's tokens are put out before the answer. The
            request has rules with logprobs then, and reuses no prefix, whose rows would not be computed.
        tenant: whose answers drafts may be looked up in, and who may look up in this one.
    """

    session: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    strategy: str = DEFAULT_STRATEGY
    strategy_options: dict[str, float] = field(default_factory=dict)
    noise: Noise = "shared"
    rows_only: bool = False
    priority: Priority = DEFAULT_PRIORITY
    reuses_prefix: bool = True
    shown_tokens: frozenset[int] = frozenset()
    rules: LogitRules | None = None
    fit_context: bool = False
    min_tokens: int = 0
    scores_prompt: bool = False
    answered: tuple[int, ...] = ()
    tenant: str = ""

    @property
    def given(self) -> tuple[int, ...]:
        """The tokens before the first one that is to be drawn: the prompt, and the answer so far."""
        return self.prompt + self.answered

    def behind(self, tokens: Sequence[int]) -> Request:
        """Return the request whose answer goes on behind further tokens that were put out."""
        if not tokens:
            return self
        return replace(self, answered=(*self.answered, *tokens), scores_prompt=False, fit_context=False)

    @property
    def draft_noise(self) -> SamplingParams | None:
        return draft_noise(self.sampling, self.noise)


@dataclass(frozen=True)
class Waiting:
    """A request has another place in the queue.

    Attributes:
        position: 1 for the request that is opened next.
        expected_s: seconds after which it is expected to be opened.
    """

    session: str
    position: int
    expected_s: float


@dataclass(frozen=True)
class Opened:
    """A request that was waiting has room now, and is begun.

    Attributes:
        waited_s: seconds that it waited.
    """

    session: str
    waited_s: float


@dataclass(frozen=True)
class Tokens:
    """Tokens that the target has drawn, with the text that they complete.

    Attributes:
        drawn: when, in seconds of the draft node's clock.
        likelihoods: of each token, if the request asked for them.
        of_prompt: likelihoods of the prompt's tokens from the second on, with the answer's first token.
    """

    session: str
    token_ids: tuple[int, ...]
    text: str
    drawn: float = 0.0
    likelihoods: tuple[TokenLikelihood, ...] = ()
    of_prompt: tuple[TokenLikelihood, ...] = ()


@dataclass(frozen=True, eq=False)
class Rows:
    """The target's output for the next rows of the prompt, for a request with `rows_only`.

    Attributes:
        payload: [n, width], in each row the final hidden state and the tapped layer inputs
            (models/taps.py).
    """

    session: str
    payload: Payload


@dataclass(frozen=True)
class StageReport:
    """The work that one stage did for one session."""

    device: str
    segments: int = 0
    rows_computed: int = 0
    rows_trimmed: int = 0  # rows that were dropped before they were computed
    rows_wasted: int = 0  # rows that were dropped after they were computed
    aborted: int = 0  # computations that were stopped between layers
    busy_s: float = 0.0
    bytes_sent: int = 0


@dataclass(frozen=True)
class VerifierCounts:
    """How one verifying model of a hierarchy took the tokens of the model before it (pipespec, section 3.3).

    A step is a batch of rows that returned from the model and made its buffer grow. Its draft tokens are the
    batch's tokens behind the last token of the model's own buffer.

    Attributes:
        steps: number of steps; verifying: number of steps with a draft token.
        drafted: draft tokens of all steps.
        tokens: number of tokens by which the buffer grew.
        compared: for each place behind the last token of the buffer, how many tokens of the model before were
            compared with the model's own. The place behind a step's draft tokens counts if there was a token.
        survived: how many of these were the model's own token too.
    """

    steps: int = 0
    verifying: int = 0
    drafted: int = 0
    tokens: int = 0
    compared: tuple[int, ...] = ()
    survived: tuple[int, ...] = ()


@dataclass(frozen=True)
class DecodeCounters:
    """The work of decoding one request, counted by the draft node.

    Attributes:
        accepted_per_segment: tokens put out after each returned segment that held live draft rows.
        accepted_per_round: tokens put out in each round; a round ends when the drawn token has no node.
        rollbacks: in a hierarchy of models, how often each verifying model made the models before it roll
            back; the target comes last.
        verifiers: what the same models did with the tokens that they checked.
        reused_rows: rows of the prompt that were copied from another session and not computed.
        rows_in_flight: mean number of rows in flight, from the first token to the last. A row is in flight
            from its sending to the target until it is verified or returned without live rows.
        rows_alive_in_flight: mean number of rows in flight that were not pruned yet.
        segments_in_flight: mean number of segments with a row in flight (engine/rows_in_flight.py).
        forced_tokens: draft tokens that a grammar left no choice about, for which no drafter was asked.
        plain_tokens_per_s: of decoding without drafts, as measured on the pipeline before; 0 if it was not.
    """

    accepted_per_segment: tuple[int, ...] = ()
    accepted_per_round: tuple[int, ...] = ()
    segments: int = 0
    empty_segments: int = 0
    prunes: int = 0
    draft_layers: int = 0
    draft_rows_sent: int = 0
    rollbacks: tuple[int, ...] = ()
    reused_rows: int = 0
    rows_in_flight: float = 0.0
    rows_alive_in_flight: float = 0.0
    segments_in_flight: float = 0.0
    forced_tokens: int = 0
    plain_tokens_per_s: float = 0.0
    verifiers: tuple[VerifierCounts, ...] = ()


def drafting_gain(
    tokens_per_s: float, plain_tokens_per_s: float, per_round: Sequence[int], per_segment: Sequence[int]
) -> str:
    """Return what drafts gained, such as "1.8 times plain decoding (12.0 tokens/s)"; "" if it is not known.

    The last token of a round is the model's own draw, so 12 tokens in 3 rounds are 9 accepted drafts.

    Args:
        plain_tokens_per_s, per_round, per_segment: of DecodeCounters.
    """
    parts = []
    if plain_tokens_per_s > 0:
        gain = tokens_per_s / plain_tokens_per_s
        if gain < LEAST_GAIN:
            return f"no faster than plain decoding ({plain_tokens_per_s:.1f} tokens/s)"
        parts.append(f"{gain:.1f} times plain decoding ({plain_tokens_per_s:.1f} tokens/s)")
    accepted = sum(per_round) - sum(tokens > 0 for tokens in per_round)
    if accepted > 0 and per_segment:
        parts.append(f"{accepted / len(per_segment):.2f} accepted drafts a segment")
    return ", ".join(parts)


@dataclass(frozen=True)
class Finished:
    """Success of a request.

    Attributes:
        reason: "eos", "stop" or "length"; "rows" for a request with `rows_only`.
        text: the rest of the output, held back until now as a possible beginning of a stop string.
        reports: of the draft node, then of the stages in order.
        side_reports: of the models on other routes that the request used.
        verification: where the tokens were drawn.
    """

    session: str
    reason: str
    text: str
    counters: DecodeCounters
    reports: tuple[StageReport, ...]
    side_reports: tuple[StageReport, ...] = ()
    verification: VerificationPlace = DRAFT_NODE


@dataclass(frozen=True)
class Failed:
    session: str
    error: FlowEdgeError


Output: TypeAlias = Waiting | Opened | Tokens | Rows | Finished | Failed
