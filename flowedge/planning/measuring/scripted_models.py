"""Executors without models: a stage of zeros, a drafter that proposes 0, 1, 2, .. and a target by dice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

import numpy as np

from flowedge.core.sampling import walk
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.draw import DrawnRows
from flowedge.engine.executors.one_by_one import OneByOneExecutor
from flowedge.engine.jobs import (
    CacheJob,
    DraftOutcome,
    ExtendDraft,
    Forward,
    ForwardBatch,
    ForwardOutcome,
    GrowDraft,
    ModelJob,
    StageJob,
    StageResult,
    Verify,
)

VOCAB = 32_000
# Rows that take as long as the weights. Times count where models are small and rows dear, as on CPUs: so
# methods that choose their rows by the times keep books of as many rows as there.
_ROWS_AS_LONG = 8
HITS = (0.70, 0.10, 0.05)  # of the drafter's choices; otherwise the target draws none of them


class BlankStage:
    """A StageExecutor whose hidden states are all zeros; as a last stage that draws, it draws by dice."""

    def __init__(self, width: int, dtype: str, forward_s: float = 0.0, hits: Sequence[float] = HITS) -> None:
        """forward_s: the time of a forward but for its rows, which is waited for; hits: as for DiceDraft."""
        self._width, self._dtype, self._forward_s, self._hits = width, dtype, forward_s, hits

    def run(self, job: StageJob) -> StageResult:
        if not isinstance(job, ForwardBatch) or job.dead:
            return None
        _wait(self._forward_s * (1 + job.num_rows / _ROWS_AS_LONG))
        return [self._forward(forward) for forward in job.forwards]

    def _forward(self, job: Forward) -> ForwardOutcome:
        hidden = np.zeros((job.num_rows, self._width), dtype=self._dtype)
        if job.draw is None:
            return hidden
        visitable = job.positions[job.draw.visitable].tolist()
        rows, tokens = job.draw.follow(lambda place: _draw(visitable[place], self._hits))
        kept = hidden if job.committed else hidden[rows]
        return DrawnRows(rows, tokens, kept if job.draw.features else kept[:, :0])


class DiceDraft(OneByOneExecutor):
    """A DraftExecutor whose target draws the drafter's choices now and then."""

    def __init__(self, draft_s: float = 0.0, verify_s: float = 0.0, hits: Sequence[float] = HITS) -> None:
        """
        draft_s: time of a forward but for its nodes; verify_s: of a verification; both are waited for.
        hits: how often the target draws the drafter's first choice, the second, and so on.
        """
        self._draft_s, self._verify_s, self._hits = draft_s, verify_s, hits

    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        match job:
            case GrowDraft():
                _wait(self._draft_s * (1 + len(job.nodes) / _ROWS_AS_LONG))
                shape = (len(job.nodes), job.width)
                tokens = np.broadcast_to(np.arange(job.width, dtype=np.int64), shape).copy()
                scores = np.random.default_rng(job.growth).uniform(0.0, 0.2, shape) - 0.4 - 1.1 * tokens
                return DraftLayer(tokens, scores)
            case ExtendDraft():
                _wait(self._draft_s)
            case Verify():
                _wait(self._verify_s)
                positions = job.positions.tolist()
                tokens, parents = job.tokens.tolist(), job.parents.tolist()
                return walk(tokens, parents, lambda row: _draw(positions[row], self._hits))
        return None


class SilentText:
    """A TextStream that gives no text."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return ""

    def flush(self) -> str:
        return ""

    def show(self, tokens: frozenset[int]) -> None:
        pass


def _wait(seconds: float) -> None:
    if seconds:  # on a virtual clock nothing waits, and even a sleep of 0 gives the processor away
        time.sleep(seconds)


@cache
def _dice(position: int) -> float:
    return float(np.random.default_rng(position).random())


def _draw(position: int, hits: Sequence[float]) -> int:
    dice = _dice(position)
    for token, bound in enumerate(np.cumsum(hits)):
        if dice < bound:
            return token
    return VOCAB - 1
