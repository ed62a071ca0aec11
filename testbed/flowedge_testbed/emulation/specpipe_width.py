"""The width of SpecPipe's tree, from a profile (specpipe, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.emulation.level_times import LevelTimes
from flowedge_testbed.profiles.documents import HitRates


def time_between_tokens(steps: Sequence[float], draft_s: float, hit_rate: float) -> float:
    """Return the expected seconds from one token to the next (equation 1).

    Our copy of the paper has lost the symbols of the formula. By the text around it a token costs one
    pipeline step, whether or not it was predicted. With probability 1 - p(width) the pipeline is empty after
    it, and has to be refilled before the next token:

        max_i T_i(width) + (1 - p(width)) * sum over the other steps of T_i(width)

    With n equal stages this is equation 2: T(width) * (1 + (1 - p(width)) * (n - 1)). With 4 stages of
    0.07 s and p = 0.8 it is 0.07 * (1 + 0.2 * 3) = 0.112 s. The paper's step holds computing, pruning and
    transmission one after the other (section 3.3.2). Transfers overlap with computing here, so the caller
    gives each link as a step of its own.

    Args:
        steps: T_i, seconds of each step over a level of this width.
        draft_s: seconds of drafting the level below a level; no step is shorter.
        hit_rate: p, the share of levels of this width that hold the drawn token.
    """
    refill = sum(steps) - max(steps)
    return max([*steps, draft_s]) + (1 - hit_rate) * refill


def best_width(widths: Iterable[int], time_of: Callable[[int], float]) -> int:
    """Return the width with the shortest expected time between tokens, the narrowest of equal ones.

    Raises:
        ValueError: when there is no width.
    """
    choices = sorted(set(widths))
    if not choices:
        raise ValueError("there is no width to choose a tree width from")
    return min(choices, key=time_of)


def level_width(emulation: PipelineProfile, hit_rates: HitRates, groups: int) -> int:
    """Return SpecPipe's width: the measured width with the shortest expected time between tokens.

    The paper finds 64, because on its GPUs the time of a layer leaps with each 64 rows (figure 9) and its
    drafters' hit rates are level from some tens of rows on (figure 7). On a device where reading the weights
    takes as long as computing 128 rows or more, a wider level costs next to nothing, and the equation goes
    on to the widest measured level as long as its hit rate still grows. By profile, computing is the bound of
    an RTX 3090 from 57 rows on (32 is found), and of an AGX Orin from 166 rows on (128 is found). The
    equation prices every level at its full width, though prunes thin a level out on its way, so it may find
    too narrow a tree. The scenario specpipe-width measures each width.

    Args:
        groups: most groups that the stages form.
    """
    times = LevelTimes(emulation, groups)

    def time_of(rows: int) -> float:
        steps = [*times.computing(rows), *times.sending(rows)]
        return time_between_tokens(steps, times.drafting(rows), hit_rates.rates[rows])

    return best_width(hit_rates.rates, time_of)
