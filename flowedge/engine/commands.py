"""Commands: what a state machine wants done. Its driver carries them out in the order in which they come.

A driver asks for commands with `poll`. What a machine has not handed out yet can still change: a prune trims
the segments that wait for the link, and those that wait to be computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from flowedge.core.messages import Message
from flowedge.core.request import Output
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.engine.work_counts import WorkCounts

JobT = TypeVar("JobT", bound=StageJob | DraftJob)


@dataclass(frozen=True)
class Compute(Generic[JobT]):
    """Have the executor run a job."""

    job: JobT


@dataclass(frozen=True)
class SendInBand:
    """Send a message on the in-band link.

    Attributes:
        route: the route of the link; a stage has one link, and leaves this 0.
    """

    message: Message
    route: int = 0


@dataclass(frozen=True)
class SendBack:
    """Send a message to the device before this one."""

    message: Message


@dataclass(frozen=True)
class SendExpress:
    """Send a message past the pipeline: from a stage to the draft node, or to all stages of a route."""

    message: Message
    route: int = 0


@dataclass(frozen=True)
class PutOut:
    """Hand an output to the client of its request."""

    output: Output


@dataclass(frozen=True)
class Count:
    """Add up what was done since the last such command."""

    counts: WorkCounts


StageCommand: TypeAlias = Compute[StageJob] | SendInBand | SendBack | SendExpress | Count
DraftNodeCommand: TypeAlias = Compute[DraftJob] | SendInBand | SendExpress | PutOut
