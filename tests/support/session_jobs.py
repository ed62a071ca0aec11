"""Jobs of one session, run in a batch of their own."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import FlowEdgeError
from flowedge.engine.jobs import DraftBatch, Forward, ForwardBatch, ModelJob


def batch_of(job: Forward | ModelJob) -> ForwardBatch | DraftBatch:
    """Return a batch of one session's job."""
    return ForwardBatch((job,)) if isinstance(job, Forward) else DraftBatch([job])  # type: ignore[arg-type]


def run_alone(executor: Any, job: Forward | ModelJob) -> Any:
    """Return the outcome of one session's job; raise it if it is an error."""
    outcomes = executor.run(batch_of(job))
    outcome = None if outcomes is None else outcomes[0]
    if isinstance(outcome, FlowEdgeError):
        raise outcome
    return outcome
