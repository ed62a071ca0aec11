"""Jobs: what a state machine wants computed, and the results.

A device computes one job at a time, like one GPU. A driver takes a job from its machine and has an executor
run it. It hands a result back with `finish(job, result)`, an error with `fail(job, error)`.

Forwards, and drafting and drawing, come as batches of one or more sessions. Each session's own job is in its
batch, and has an outcome of its own there: its result, or the error with which this one session ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import FlowEdgeError
from flowedge.core.sampling import RuledPath, SamplingParams, Walk
from flowedge.drafting.drafter import DraftLayer, DraftPrefix
from flowedge.drafting.lookup.answer_store import EndedAnswer
from flowedge.engine.draw import Draw, DrawnRows


@dataclass(frozen=True, eq=False)
class CopiedRows:
    """Rows of a session's KV cache that another cache begins with.

    Attributes:
        slots: int64 [n], where the rows are in the session's cache.
        shared: of these, the first ones that are to lie in pages of both caches.
    """

    session: str
    slots: IntArray
    shared: int = 0


@dataclass(frozen=True, eq=False)
class OpenCache:
    """Allocate the KV cache of a session, `capacity` rows. Result: None.

    Attributes:
        copied: the rows that become its first ones.
    """

    session: str
    capacity: int
    copied: CopiedRows | None = None


@dataclass(frozen=True)
class OpenDraft:
    """Begin a session of the drafter (see Drafter.open). Result: None.

    Attributes:
        tenant: whose earlier answers may be looked up in.
    """

    session: str
    capacity: int
    first_token: int
    noise: SamplingParams | None = None
    prefix: DraftPrefix | None = None
    tenant: str = ""


@dataclass(frozen=True)
class KeepDraft:
    """Have the drafter keep the true rows of a session that has ended (see Drafter.keep). Result: None.

    Attributes:
        answer: the session's whole answer, which later sessions may look up in.
    """

    session: str
    answer: EndedAnswer | None = None


@dataclass(frozen=True)
class DropCache:
    """Free the KV cache, or the drafter's state, of a session. Result: None. `answer` is as in KeepDraft."""

    session: str
    answer: EndedAnswer | None = None


@dataclass(eq=False)
class Forward:
    """Compute n rows of one session through a stage's layers.

    Result: a payload as in StageSpec, DrawnRows if there is something to draw, or None when aborted.

    Attributes:
        gathered_until: for the gather that comes first: cache row gathered_until + i receives cache row
            slots[i].
        slots: int64, strictly ascending, each at least gathered_until + its index.
        context: rows below this are seen by every row.
        cached: cache row of the first computed row; equals gathered_until + len(slots).
        tail_parents: int64, parent row of rows context .. cached + n, CONTEXT where it is the context.
        positions: int64 [n]; payload: int32 [n] token ids or [n, width] hidden states.
        draw: what the last stage is to draw; None where all rows are handed on.
        dead: set when no row lives any more; to be read between layers.
    """

    session: str
    gathered_until: int
    slots: IntArray
    context: int
    cached: int
    tail_parents: IntArray
    positions: IntArray
    payload: Payload
    committed: bool = False
    draw: Draw | None = None
    dead: bool = field(default=False)

    @property
    def num_rows(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """Compute the rows of one or more sessions together. Result: a list of outcomes, or None when aborted."""

    forwards: tuple[Forward, ...]

    @property
    def num_rows(self) -> int:
        return sum(forward.num_rows for forward in self.forwards)

    @property
    def dead(self) -> bool:
        """Whether no row of any session lives any more."""
        return all(forward.dead for forward in self.forwards)


@dataclass(frozen=True, eq=False)
class Verify:
    """Draw the target's tokens along the draft rows of a session that came back. Result: sampling.Walk.

    Attributes:
        hidden: [n, width], each row the final hidden state, then what was tapped; row 0 is the root.
        tokens: int64 [n]; parents: int64 [n] offsets into these rows, -1 for the root.
        positions: int64 [n] absolute; the token drawn after row i has position positions[i] + 1.
        path: the session's rules, and its answer up to the root; None without rules.
        known: int64 [n], tokens of the prompt that follow the rows, which are taken in place of draws: their
            likelihoods alone are wanted. None where tokens are drawn.
    """

    session: str
    sampling: SamplingParams
    hidden: Payload
    tokens: IntArray
    parents: IntArray
    positions: IntArray
    path: RuledPath | None = None
    known: IntArray | None = None


@dataclass(frozen=True, eq=False)
class ExtendDraft:
    """Extend the drafter's sequence of a session by true rows (see GrowRequest). Result: None.

    Attributes:
        features: [n, width]; None for a drafter that needs no hidden states of the target.
        next_tokens: int64 [n], the token after each row.
    """

    session: str
    features: Payload | None
    next_tokens: IntArray


@dataclass(frozen=True, eq=False)
class GrowDraft:
    """Draft one layer of a session's tree. Result: DraftLayer.

    Attributes:
        growth: number of the growth; a new number discards the rows of the growth before.
        nodes: int64 [f] the caller's names of the frontier nodes; 0 is the root, alone in the first layer.
        parents: int64 [f] names of their parents, -1 for the root; tokens: int64 [f].
        width: how many children each node gets.
        features, next_tokens: true rows by which the drafter is extended first (see ExtendDraft), the last of
            which leads to the root. Without true rows next_tokens is None.
        path: in the first layer of a growth, the session's rules and its answer up to the root; None where no
            rule changes draws.
        lookup_alone: as in GrowRequest.
    """

    session: str
    growth: int
    nodes: IntArray
    parents: IntArray
    tokens: IntArray
    width: int
    features: Payload | None
    next_tokens: IntArray | None
    path: RuledPath | None = None
    lookup_alone: bool = False


@dataclass(frozen=True, eq=False)
class DraftBatch:
    """Draft, or draw the target's tokens, for one or more sessions together. Result: a list of outcomes.

    Attributes:
        jobs: at most one of each session; either of `Verify`, or of `ExtendDraft` and `GrowDraft`.
    """

    jobs: Sequence[Verify] | Sequence[ExtendDraft | GrowDraft]

    def __post_init__(self) -> None:
        sessions = [job.session for job in self.jobs]
        if len(set(sessions)) < len(sessions):
            raise ValueError(
                f"a batch has two jobs of a session, of {', '.join(sessions)}; give it one of each"
            )
        verifying = [isinstance(job, Verify) for job in self.jobs]
        if any(verifying) and not all(verifying):
            raise ValueError("a batch verifies and drafts; make a batch of each kind")

    @property
    def verifies(self) -> bool:
        return any(isinstance(job, Verify) for job in self.jobs)


class JobTime(NamedTuple):
    """What a job took: its rows, those of other sessions in it included, and seconds."""

    rows: int
    seconds: float


StageJob: TypeAlias = OpenCache | DropCache | ForwardBatch
ForwardOutcome: TypeAlias = Payload | DrawnRows | FlowEdgeError | None
StageResult: TypeAlias = list[ForwardOutcome] | None
CacheJob: TypeAlias = OpenDraft | KeepDraft | DropCache
ModelJob: TypeAlias = Verify | ExtendDraft | GrowDraft
DraftJob: TypeAlias = CacheJob | DraftBatch
DraftOutcome: TypeAlias = Walk | DraftLayer | FlowEdgeError | None
DraftResult: TypeAlias = list[DraftOutcome] | None
SessionJob: TypeAlias = OpenCache | Forward | CacheJob | ModelJob


def session_jobs(job: StageJob | DraftJob) -> tuple[SessionJob, ...]:
    """Return the jobs of single sessions that a job consists of."""
    match job:
        case ForwardBatch():
            return job.forwards
        case DraftBatch():
            return tuple(job.jobs)
        case _:
            return (job,)


def outcomes_of(job: DraftJob, result: DraftResult) -> list[tuple[ModelJob, DraftOutcome]]:
    """Return the jobs of single sessions in a batch, each with its outcome; none for a job about a cache."""
    return list(zip(job.jobs, result or (), strict=True)) if isinstance(job, DraftBatch) else []


def sessions_of(job: StageJob | DraftJob) -> tuple[str, ...]:
    """Return the sessions that a job is for."""
    return tuple(each.session for each in session_jobs(job))


def shares_of(job: StageJob | DraftJob) -> dict[str, float]:
    """Return each session's share of the time of a job: that of its rows where it has any."""
    if isinstance(job, ForwardBatch):
        return {forward.session: forward.num_rows / job.num_rows for forward in job.forwards}
    jobs = session_jobs(job)
    return {each.session: 1 / len(jobs) for each in jobs}


class StageExecutor(Protocol):
    """Runs a stage's jobs; called from one thread at a time."""

    def run(self, job: StageJob) -> StageResult:
        """Run a job. The memory of a payload is not written to any more: it is sent from there."""


class DraftExecutor(Protocol):
    """Runs a draft node's jobs; called from one thread at a time."""

    def run(self, job: DraftJob) -> DraftResult:
        """Run a job."""
