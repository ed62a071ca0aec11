"""Groups of neighbouring stages, each of which computes a level in a step (pipedec, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping

from flowedge.planning.split import even_split, layer_ranges
from flowedge.strategies.published.stepwise import LevelByLevel
from flowedge.strategies.registry import make_strategy


def stage_groups(stages: int, groups: int) -> list[tuple[int, int]]:
    """Return the first stage of each group, and the one behind its last.

    Groups are as even as possible, as the paper asks for. 14 stages in 7 groups are (0, 2), (2, 4) and so on.

    Args:
        groups: most groups; each stage is one if there are fewer stages.
    """
    return layer_ranges(even_split(stages, min(groups, stages), larger_first=True))


def groups_of(strategy: str, options: Mapping[str, float], stages: int) -> list[tuple[int, int]]:
    """Return the groups of stages that a method steps by; each stage is one unless its option says more."""
    made = make_strategy(strategy, options)
    return stage_groups(stages, made.settings.groups if isinstance(made, LevelByLevel) else stages)
