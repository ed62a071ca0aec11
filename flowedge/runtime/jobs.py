"""Work for a compute lane: what a state machine wants computed, and what comes back.

A lane runs one job at a time, like one GPU. Drivers take jobs from a machine with `next_job()`, have an
executor run them, and hand the result back with `finish(job, result)` or `fail(job, error)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from flowedge.messages import Payload
from flowedge.sampling import FloatArray, IntArray, SamplingParams, Walk


@dataclass(frozen=True)
class OpenCache:
    """Allocate the KV cache of a session, `capacity` rows. Result: None."""

    session: str
    capacity: int


@dataclass(frozen=True)
class DropCache:
    """Free the KV cache of a session. Result: None."""

    session: str


@dataclass(eq=False)
class Forward:
    """Compute n rows through a stage's layers. Result: [n, hidden] payload, or None when aborted.

    Attributes:
        settled: before computing, cache row settled + i must receive cache row slots[i] (the pending gather).
        slots: int64, strictly ascending, each at least settled + its index.
        context: rows below this are seen by every row.
        cached: cache row of the first computed row; equals settled + len(slots).
        tail_parents: int64, parent row of rows context .. cached + n, CONTEXT where it is the context.
        positions: int64 [n]; payload: int32 [n] token ids or [n, hidden].
        dead: set when no row is wanted any more; to be read between layers.
    """

    session: str
    settled: int
    slots: IntArray
    context: int
    cached: int
    tail_parents: IntArray
    positions: IntArray
    payload: Payload
    committed: bool = False
    dead: bool = field(default=False)

    @property
    def num_rows(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, eq=False)
class Verify:
    """Draw the target's tokens along the draft rows that came back. Result: sampling.Walk.

    Attributes:
        hidden: [n, hidden] final hidden states; row 0 is the root.
        tokens: int64 [n]; parents: int64 [n] offsets into these rows, -1 for the root.
        positions: int64 [n] absolute; the token drawn after row i has position positions[i] + 1.
    """

    session: str
    sampling: SamplingParams
    hidden: Payload
    tokens: IntArray
    parents: IntArray
    positions: IntArray


@dataclass(frozen=True, eq=False)
class ExtendDraft:
    """Advance the drafter's own cache: features[t] is paired with the token at t + 1. Result: None."""

    session: str
    features: Payload
    next_tokens: IntArray


@dataclass(frozen=True, eq=False)
class GrowDraft:
    """One layer of a draft tree. Result: DraftLayer.

    Attributes:
        growth: number of the growth; a new number discards the scratch of the one before.
        nodes: int64 [f] the caller's names of the frontier nodes; 0 is the root, alone in the first layer.
        parents: int64 [f] names of their parents, -1 for the root; tokens: int64 [f].
        width: how many children each node gets.
        features, next_tokens: true features to extend the drafter's cache by first (see ExtendDraft); the
            last pair leads to the root.
    """

    session: str
    growth: int
    nodes: IntArray
    parents: IntArray
    tokens: IntArray
    width: int
    features: Payload | None
    next_tokens: IntArray | None


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """The likeliest children of each frontier node.

    Attributes:
        tokens: int64 [f, width], likeliest first; log_probs: float64 [f, width].
    """

    tokens: IntArray
    log_probs: FloatArray


StageJob: TypeAlias = OpenCache | DropCache | Forward
DraftJob: TypeAlias = OpenCache | DropCache | Verify | ExtendDraft | GrowDraft
DraftResult: TypeAlias = Walk | DraftLayer | None


class StageExecutor(Protocol):
    """Runs a stage's jobs; called from one thread at a time."""

    def run(self, job: StageJob) -> Payload | None: ...


class DraftExecutor(Protocol):
    """Runs a draft node's jobs; called from one thread at a time."""

    def run(self, job: DraftJob) -> DraftResult: ...


class Drafter(Protocol):
    """Proposes tokens. The state of a session is kept under its id; scratch belongs to the latest growth."""

    def open(self, session: str, capacity: int) -> None: ...

    def close(self, session: str) -> None: ...

    def extend(self, session: str, features: Payload, next_tokens: IntArray) -> None: ...

    def grow(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
        width: int,
    ) -> DraftLayer: ...
