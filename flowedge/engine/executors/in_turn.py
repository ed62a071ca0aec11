"""Batches of draft jobs, run one job after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import overload

from flowedge.core.errors import FlowEdgeError
from flowedge.engine.jobs import DraftBatch, DraftJob, DraftOutcome, DraftResult


def run_in_turn(run: Callable[[DraftJob], DraftResult], batch: DraftBatch) -> list[DraftOutcome]:
    """Return the outcome of each job of a batch, which `run` computes alone."""
    outcomes: list[DraftOutcome] = []
    for job in batch.jobs:
        try:
            outcomes.append(run(job))
        except FlowEdgeError as error:
            outcomes.append(error)
    return outcomes


class JobsInTurn(ABC):
    """A DraftExecutor that runs the jobs of a batch one after the other."""

    @overload
    def run(self, job: DraftJob) -> DraftResult: ...

    @overload
    def run(self, job: DraftBatch) -> list[DraftOutcome]: ...

    def run(self, job: DraftJob | DraftBatch) -> DraftResult | list[DraftOutcome]:
        return run_in_turn(self._run, job) if isinstance(job, DraftBatch) else self._run(job)

    @abstractmethod
    def _run(self, job: DraftJob) -> DraftResult:
        """Run one job."""
