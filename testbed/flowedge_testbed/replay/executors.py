"""Executors that compute nothing: a hidden state is its row's position, and draws are looked up."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import walk
from flowedge.engine.jobs import DraftJob, DraftResult, ExtendDraft, Forward, GrowDraft, StageJob, Verify
from flowedge_testbed.replay.path_drafter import History, PathDrafter
from flowedge_testbed.replay.true_path import TruePath

WIDTH = 1  # of a hidden state in replay


class ReplayStage:
    """A StageExecutor whose hidden states [n, 1] are positions, which float32 holds exactly."""

    def run(self, job: StageJob) -> Payload | None:
        if not isinstance(job, Forward) or job.dead:
            return None
        positions: Payload = job.positions.astype(np.float32)[:, None]
        return positions


class ReplayDraft:
    """A DraftExecutor for one request along its true path."""

    def __init__(self, path: TruePath, drafter: PathDrafter | None) -> None:
        self._path = path
        self._drafter = drafter
        self._rows = 0  # true rows the drafter was given
        self._growth: int | None = None
        self._history = History(0)

    def run(self, job: DraftJob) -> DraftResult:
        """Run a job: draws come from the path, and each draft layer is drafted once."""
        match job:
            case Verify():
                positions = job.positions.tolist()
                return walk(
                    job.tokens.tolist(),
                    job.parents.tolist(),
                    lambda row: self._path.draw(positions[row] + 1),
                )
            case ExtendDraft():
                self._extend(job.next_tokens)
            case GrowDraft():
                return self._grow(job)
        return None

    def _extend(self, next_tokens: IntArray) -> None:
        if len(next_tokens):
            self._rows += len(next_tokens)
            self._growth = None

    def _grow(self, job: GrowDraft) -> DraftResult:
        if self._drafter is None:
            raise BadRequestError("this run has no drafter; use the strategy autoregressive")
        if job.next_tokens is not None:
            self._extend(job.next_tokens)
        if job.growth != self._growth:
            self._growth, self._history = job.growth, History(self._rows)
        return self._drafter.layer(self._history, job)
