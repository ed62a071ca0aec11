"""The costs of a pipeline whose stages do not prune their KV caches (flowspec, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowedge.engine.jobs import Forward, ForwardBatch, StageJob
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts


class UnprunedCacheCosts(ProfileCosts):
    """ProfileCosts in which attention reads every row that a session has ever computed on a stage.

    Pruned rows are masked, so that the tokens stay the same, but their keys and values are read. Without
    pruning a cache would need room for all of them; the memory check does not count it.
    """

    def __init__(self, pipeline: PipelineProfile, seed: int, strategy: str) -> None:
        super().__init__(pipeline, seed, strategy)
        self._written: dict[tuple[int, str], int] = {}  # rows of a session in the cache of a stage

    def stage_job(self, stage: int, job: StageJob) -> float:
        if isinstance(job, ForwardBatch):
            for forward in job.forwards:
                before = max(self._written.get((stage, forward.session), 0), forward.cached)
                self._written[stage, forward.session] = before + forward.num_rows
        return super().stage_job(stage, job)

    def layers(self, stage: int, forwards: Sequence[Forward]) -> float:
        """Return the time of a stage's layers over forwards that `stage_job` has been asked for."""
        return super().layers(stage, [self._unpruned(stage, forward) for forward in forwards])

    def _unpruned(self, stage: int, forward: Forward) -> Forward:
        return replace(forward, cached=self._written[stage, forward.session] - forward.num_rows)
