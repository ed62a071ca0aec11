"""A request to generate, as the draft node holds it, and what it puts out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.messages import Payload, StageReport
from flowedge.core.sampling import SamplingParams

Noise: TypeAlias = Literal["plain", "shared"]
NOISES: tuple[Noise, ...] = get_args(Noise)
DEFAULT_STRATEGY = "auto"


def parse_noise(text: str) -> Noise:
    """The kind of drafting of this name; BadRequestError for any other text."""
    for noise in NOISES:
        if noise == text:
            return noise
    raise BadRequestError(f"noise is {text!r}; it must be {' or '.join(NOISES)}")


def draft_noise(sampling: SamplingParams, noise: Noise) -> SamplingParams | None:
    """What a drafter is to rank by beside its own probabilities (see Drafter.open)."""
    return sampling if noise == "shared" and not sampling.greedy else None


@dataclass(frozen=True)
class Request:
    """One generation.

    Attributes:
        prompt: token ids, at least one.
        stop: strings at which generation ends; none of the string and nothing after it is put out.
        eos: token ids at which generation ends; the id itself is put out as a token, not as text.
        noise: what drafts are ranked by; shared: by the noise of the draws as well, none at temperature 0.
        rows_only: the prompt is computed, its rows are put out, and nothing is generated; the strategy, which
            must not draft, and max_new_tokens say nothing then.
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

    @property
    def draft_noise(self) -> SamplingParams | None:
        """What the drafter is to rank by beside its own probabilities (see Drafter.open)."""
        return draft_noise(self.sampling, self.noise)


@dataclass(frozen=True)
class Tokens:
    """Tokens the target has drawn, with the text they complete."""

    session: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, eq=False)
class Rows:
    """What the target made of the prompt's next rows, for a request that asks for rows only.

    Attributes:
        payload: [n, width], each row the final hidden state and what was tapped (see models/layers/taps.py).
    """

    session: str
    payload: Payload


@dataclass(frozen=True)
class DecodeCounters:
    """What decoding one request took, counted by the draft node.

    Attributes:
        accepted_per_segment: tokens put out after each returned segment that held live draft rows.
        accepted_per_round: tokens put out in each round; a round ends when the drawn token has no node.
        rollbacks: of a hierarchy of models, how often each verifier had those before it roll back, the
            target last.
        rows_in_flight: rows sent to the target and not yet verified or returned empty, as a mean over the
            time from the first token to the last; rows_alive_in_flight: those of them not pruned yet;
            segments_in_flight: segments that hold such a row (see flight_meter.py).
    """

    accepted_per_segment: tuple[int, ...] = ()
    accepted_per_round: tuple[int, ...] = ()
    segments: int = 0
    empty_segments: int = 0
    prunes: int = 0
    draft_layers: int = 0
    draft_rows_sent: int = 0
    rollbacks: tuple[int, ...] = ()
    rows_in_flight: float = 0.0
    rows_alive_in_flight: float = 0.0
    segments_in_flight: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The request ended well: reason "eos", "stop" or "length", or "rows" when those are all out.

    Attributes:
        reports: of the draft node, then of the stages; side_reports: of the models on other routes.
    """

    session: str
    reason: str
    text: str  # what had been held back and belongs to the output
    counters: DecodeCounters
    reports: tuple[StageReport, ...]
    side_reports: tuple[StageReport, ...] = ()


@dataclass(frozen=True)
class Failed:
    """The request ended with an error."""

    session: str
    error: FlowEdgeError


Output: TypeAlias = Tokens | Rows | Finished | Failed
