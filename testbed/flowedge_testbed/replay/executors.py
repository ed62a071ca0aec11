"""Executors that compute nothing: a hidden state is its row's position, and draws are looked up."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import walk
from flowedge.engine.draw import DrawnRows
from flowedge.engine.executors.one_by_one import OneByOneExecutor
from flowedge.engine.jobs import (
    CacheJob,
    DraftOutcome,
    DropCache,
    ExtendDraft,
    Forward,
    ForwardBatch,
    ForwardOutcome,
    GrowDraft,
    ModelJob,
    OpenDraft,
    StageJob,
    StageResult,
    Verify,
)
from flowedge_testbed.replay.path_drafter import History, PathDrafter
from flowedge_testbed.true_paths.true_path import TruePath

WIDTH = 1  # of a hidden state in replay


class ReplayStage:
    """A StageExecutor whose hidden states [n, 1] are positions, which float32 holds exactly.

    A last stage that draws looks its draws up in the path. What is tapped is zeros.
    """

    def __init__(self, path: TruePath, taps: int = 0) -> None:
        """taps: values that it adds to each row."""
        self._path = path
        self._taps = taps

    def run(self, job: StageJob) -> StageResult:
        if not isinstance(job, ForwardBatch) or job.dead:
            return None
        return [self.forward(forward) for forward in job.forwards]

    def forward(self, job: Forward) -> ForwardOutcome:
        """Return what a forward puts out, whether its rows live or not."""
        carried = job.payload.shape[1] - WIDTH if job.payload.ndim > 1 else 0
        hidden: Payload = np.zeros((job.num_rows, WIDTH + carried + self._taps), dtype=np.float32)
        hidden[:, 0] = job.positions
        draw = job.draw
        if draw is None:
            return hidden
        visitable = job.positions[draw.visitable].tolist()
        # Beyond the end of the output any token will do: the request is over by then.
        rows, tokens = draw.follow(lambda place: max(self._path.draw(visitable[place] + 1), 0))
        kept = hidden if job.committed else hidden[rows]
        return DrawnRows(rows, tokens, kept if draw.features else kept[:, :0])


class ReplayStages:
    """A StageExecutor for several requests, each along its own path; `opened` before its first job."""

    def __init__(self, taps: int = 0) -> None:
        """taps: values that it adds to each row."""
        self._taps = taps
        self._sessions: dict[str, ReplayStage] = {}

    def opened(self, session: str, path: TruePath) -> None:
        """Take notice of a session that is about to begin."""
        self._sessions[session] = ReplayStage(path, self._taps)

    def run(self, job: StageJob) -> StageResult:
        if isinstance(job, ForwardBatch):
            every = ((forward, self._sessions[forward.session]) for forward in job.forwards)
            return None if job.dead else [stage.forward(forward) for forward, stage in every]
        if isinstance(job, DropCache):
            del self._sessions[job.session]
        return None


class ReplayDrafts(OneByOneExecutor):
    """A DraftExecutor for several requests, each along its own path; `opened` before its first job."""

    def __init__(self) -> None:
        self._sessions: dict[str, ReplayDraft] = {}

    def opened(self, session: str, path: TruePath, drafter: PathDrafter | None) -> None:
        """Take notice of a session that is about to begin."""
        self._sessions[session] = ReplayDraft(path, drafter)

    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        result = self._sessions[job.session].of_session(job)
        if isinstance(job, DropCache):
            del self._sessions[job.session]
        return result


class ReplayDraft(OneByOneExecutor):
    """A DraftExecutor for one request along its true path."""

    def __init__(self, path: TruePath, drafter: PathDrafter | None) -> None:
        self._path = path
        self._drafter = drafter
        self._rows = 0  # true rows the drafter was given
        self._growth: int | None = None
        self._history = History(0)

    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        return self.of_session(job)

    def of_session(self, job: CacheJob | ModelJob) -> DraftOutcome:
        """Run a job: draws come from the path, and each draft layer is drafted once."""
        match job:
            case Verify():
                positions = job.positions.tolist()
                return walk(
                    job.tokens.tolist(),
                    job.parents.tolist(),
                    lambda row: self._path.draw(positions[row] + 1),
                )
            case OpenDraft() if job.prefix is not None:
                self._rows = job.prefix.rows
            case ExtendDraft():
                self._extend(job.next_tokens)
            case GrowDraft():
                return self._grow(job)
        return None

    def _extend(self, next_tokens: IntArray) -> None:
        if len(next_tokens):
            self._rows += len(next_tokens)
            self._growth = None

    def _grow(self, job: GrowDraft) -> DraftOutcome:
        if self._drafter is None:
            raise BadRequestError("this run has no drafter; use the strategy autoregressive")
        ahead = 0  # rows that lookup has, and the models have not
        if job.next_tokens is not None and job.lookup_alone:
            ahead = len(job.next_tokens)
        elif job.next_tokens is not None:
            self._extend(job.next_tokens)
        if job.growth != self._growth:
            self._growth, self._history = job.growth, History(self._rows + ahead)
        return self._drafter.layer(self._history, job)
