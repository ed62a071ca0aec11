"""What a level of a draft tree takes on each group of stages and on each link of an emulated pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.engine.jobs import DraftBatch, GrowDraft
from flowedge.planning.choices import forward_of, states_of
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.emulation.stage_groups import stage_groups


class LevelTimes:
    """The times of a pipeline whose stages form `groups` of neighbours, as even as possible.

    A last stage that draws tokens draws from the root alone and returns its row alone, because everything
    beside the root is pruned by then.
    """

    def __init__(self, emulation: PipelineProfile, groups: int) -> None:
        self._costs = ProfileCosts(emulation)
        self._last = emulation.num_stages - 1
        self._drawing = emulation.verification == LAST_STAGE
        self.groups = stage_groups(emulation.num_stages, groups)

    def computing(self, rows: int) -> list[float]:
        """Return the seconds of each group over a level: its stages, and the links between them."""
        return [
            sum(self._stage(stage, rows) for stage in range(first, stop))
            + sum(self._link(stage, rows) + self._latency(stage) for stage in range(first, stop - 1))
            for first, stop in self.groups
        ]

    def sending(self, rows: int) -> list[float]:
        """Return the seconds for which a level occupies the link that leaves each group."""
        return [self._link(stop - 1, rows) for _, stop in self.groups]

    def arriving(self, rows: int) -> list[float]:
        """Return the seconds from the end of a step until its rows have arrived: draft node, then groups.

        Jitter counts with its mean.
        """
        drafted = replace(states_of(rows), payload=np.zeros(rows, dtype=np.int32))
        leaving = [self._costs.transfer(DRAFT_NODE, drafted), *self.sending(rows)]
        last_stages = [DRAFT_NODE, *(stop - 1 for _, stop in self.groups)]
        return [seconds + self._latency(stage) for seconds, stage in zip(leaving, last_stages, strict=True)]

    def drawing(self) -> float:
        """Return the seconds in which the draft node draws a token; 0 where the last stage does."""
        return 0.0 if self._drawing else self._costs.verify(1)

    def drafting(self, rows: int) -> float:
        """Return the seconds in which the draft node drafts the level below a level."""
        names = np.arange(1, rows + 1)
        job = GrowDraft("level", 1, names, np.zeros_like(names), names, 1, None, None)
        return self._costs.draft_job(DraftBatch([job]))

    def _stage(self, stage: int, rows: int) -> float:
        return self._costs.stage_job(stage, forward_of(rows, drawn=1 if self._draws(stage) else 0))

    def _link(self, stage: int, rows: int) -> float:
        return self._costs.transfer(stage, states_of(1 if self._draws(stage) else rows))

    def _latency(self, stage: int) -> float:
        link = self._costs.pipeline.links[stage]
        return (link.latency_ms + link.jitter_ms / 2) / 1e3

    def _draws(self, stage: int) -> bool:
        return self._drawing and stage == self._last
