"""Batches of draft jobs, run one session's job after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from flowedge.core.errors import FlowEdgeError
from flowedge.engine.jobs import CacheJob, DraftBatch, DraftJob, DraftOutcome, DraftResult, ModelJob


def run_one_by_one(run: Callable[[ModelJob], DraftOutcome], batch: DraftBatch) -> list[DraftOutcome]:
    """Return the outcome of each job of a batch, which `run` returns or raises."""
    outcomes: list[DraftOutcome] = []
    for job in batch.jobs:
        try:
            outcomes.append(run(job))
        except FlowEdgeError as error:
            outcomes.append(error)
    return outcomes


class OneByOneExecutor(ABC):
    """A DraftExecutor that computes for one session after the other."""

    def run(self, job: DraftJob) -> DraftResult:
        if isinstance(job, DraftBatch):
            return run_one_by_one(self._run, job)
        self._run(job)
        return None

    @abstractmethod
    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        """Run the job of one session."""
