"""Executors without models: a stage of zeros, a drafter that proposes 0, 1, 2, .. and a target by dice."""

from __future__ import annotations

import time

import numpy as np

from flowedge.core.sampling import walk
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.executors.one_by_one import OneByOneExecutor
from flowedge.engine.jobs import (
    CacheJob,
    DraftOutcome,
    ExtendDraft,
    ForwardBatch,
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
# How often the target draws the drafter's first, second and third choice; otherwise none of them.
_CHOICES = (0.70, 0.10, 0.05)


class BlankStage:
    """A StageExecutor whose hidden states are all zeros."""

    def __init__(self, width: int, dtype: str, forward_s: float = 0.0) -> None:
        """forward_s: the time of a forward but for its rows, which is waited for."""
        self._width, self._dtype, self._forward_s = width, dtype, forward_s

    def run(self, job: StageJob) -> StageResult:
        if not isinstance(job, ForwardBatch):
            return None
        time.sleep(self._forward_s * (1 + job.num_rows / _ROWS_AS_LONG))
        return [np.zeros((each.num_rows, self._width), dtype=self._dtype) for each in job.forwards]


class DiceDraft(OneByOneExecutor):
    """A DraftExecutor whose target draws the drafter's choices as `_CHOICES` says."""

    def __init__(self, draft_s: float = 0.0, verify_s: float = 0.0) -> None:
        """draft_s: time of a forward but for its nodes; verify_s: of a verification; both are waited for."""
        self._draft_s, self._verify_s = draft_s, verify_s

    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        match job:
            case GrowDraft():
                time.sleep(self._draft_s * (1 + len(job.nodes) / _ROWS_AS_LONG))
                shape = (len(job.nodes), job.width)
                tokens = np.broadcast_to(np.arange(job.width, dtype=np.int64), shape).copy()
                scores = np.random.default_rng(job.growth).uniform(0.0, 0.2, shape) - 0.4 - 1.1 * tokens
                return DraftLayer(tokens, scores)
            case ExtendDraft():
                time.sleep(self._draft_s)
            case Verify():
                time.sleep(self._verify_s)
                positions = job.positions.tolist()
                return walk(job.tokens.tolist(), job.parents.tolist(), lambda row: _draw(positions[row]))
        return None


class SilentText:
    """A TextStream that gives no text."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return ""

    def flush(self) -> str:
        return ""

    def show(self, tokens: frozenset[int]) -> None:
        pass


def _draw(position: int) -> int:
    dice = np.random.default_rng(position).random()
    for token, bound in enumerate(np.cumsum(_CHOICES)):
        if dice < bound:
            return token
    return VOCAB - 1
