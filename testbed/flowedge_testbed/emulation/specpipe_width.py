"""The width of SpecPipe's tree, from a profile (specpipe, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.engine.jobs import DraftBatch, GrowDraft
from flowedge.planning.choices import forward_of, states_of
from flowedge.planning.measured_costs import TimeOfRows
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge_testbed.profiles.documents import HitRates


def time_between_tokens(
    width: int, stages: Sequence[TimeOfRows], draft: TimeOfRows, hit_rate: Callable[[int], float]
) -> float:
    """Return the expected seconds from one token to the next (equation 1).

    Our copy of the paper has lost the symbols of the formula. By the text around it a token costs one
    pipeline step, whether or not it was predicted. With probability 1 - p(width) the pipeline is empty after
    it, and has to be refilled before the next token:

        max_i T_i(width) + (1 - p(width)) * sum over the other steps of T_i(width)

    With equal stages this is equation 2: T(width) * (1 + (1 - p(width)) * (n - 1)). The paper's step holds
    computing, pruning and transmission one after the other (section 3.3.2). Transfers overlap with computing
    here, so the caller gives each link as a step of its own.

    Args:
        width: rows of a level.
        stages: seconds of each step by the rows of a level.
        draft: seconds of drafting the level below a level, by its rows; no step is shorter.
        hit_rate: p, the share of levels that hold the drawn token, by their rows.
    """
    times = [stage(width) for stage in stages]
    refill = sum(times) - max(times)
    return max([*times, draft(width)]) + (1 - hit_rate(width)) * refill


def best_width(
    widths: Iterable[int],
    stages: Sequence[TimeOfRows],
    draft: TimeOfRows,
    hit_rate: Callable[[int], float],
) -> int:
    """Return the width with the shortest expected time between tokens, the narrowest of equal ones.

    Raises:
        ValueError: when there is no width or no step.
    """
    choices = sorted(set(widths))
    if not choices or not stages:
        raise ValueError("there is no width or no pipeline step to choose a tree width by")
    return min(choices, key=lambda width: time_between_tokens(width, stages, draft, hit_rate))


def level_width(emulation: PipelineProfile, hit_rates: HitRates) -> int:
    """Return SpecPipe's width: the measured width with the shortest expected time between tokens.

    Transfers overlap with computing here, so each link is a step of equation 1, like each stage.
    """
    costs = ProfileCosts(emulation)
    drawing = emulation.num_stages - 1 if emulation.verification == LAST_STAGE else None

    def computing(stage: int, rows: int) -> float:
        return costs.stage_job(stage, forward_of(rows, drawn=1 if stage == drawing else 0))

    def sending(stage: int, rows: int) -> float:
        return costs.transfer(stage, states_of(1 if stage == drawing else rows))

    return best_width(
        hit_rates.rates,
        [partial(step, stage) for stage in range(len(emulation.stages)) for step in (computing, sending)],
        lambda rows: costs.draft_job(_level(rows)),
        lambda rows: hit_rates.rates[rows],
    )


def _level(rows: int) -> DraftBatch:
    names = np.arange(1, rows + 1)
    return DraftBatch([GrowDraft("width", 1, names, np.zeros_like(names), names, 1, None, None)])
