"""The time between tokens that the papers' models of latency predict for an emulated pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.strategies.autoregressive import Autoregressive
from flowedge.strategies.published.stepwise import LevelByLevel
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.emulation.level_times import LevelTimes
from flowedge_testbed.emulation.specpipe_width import time_between_tokens


def plain_latency(computing: Sequence[float], transfers: Sequence[float]) -> float:
    """Return the seconds of a token that passes through a pipeline alone (pipedec, section 2.4).

    Latency = sum of T_c,i + sum of T_t,i. Two nodes of 0.1 s with a transfer of 0.02 s take 0.22 s.

    Args:
        computing: T_c,i, seconds of each node; transfers: T_t,i, seconds between neighbouring nodes.
    """
    return sum(computing) + sum(transfers)


def pipedec_latency(
    draft_s: float, computing: Sequence[float], transfers: Sequence[float], compensation: float
) -> float:
    """Return the seconds between tokens of PipeDec if every prediction is right (pipedec, section 2.4).

    Latency = max(T_draft, C * max(T_c,i) + max(T_t,i)). With T_draft = 0.05 s, nodes of 0.1 s, a transfer of
    0.02 s and C = 1.3 it is 0.15 s.

    Args:
        draft_s: T_draft, seconds in which a layer of the tree is drafted.
        computing, transfers: as in plain_latency. A group of nodes is one node.
        compensation: C, by how much longer a layer of the tree takes than one row.
    """
    return max(draft_s, compensation * max(computing) + max(transfers))


@dataclass(frozen=True)
class PredictedLatency:
    """Seconds between tokens by the models of two papers.

    Attributes:
        without_misses: of PipeDec's section 2.4.
        with_misses: of SpecPipe's equation 1, with the measured hit rate; None for plain decoding.
    """

    without_misses: float
    with_misses: float | None


def predicted_latency(
    emulation: PipelineProfile, strategy: str, options: Mapping[str, float], hit_rate: float | None
) -> PredictedLatency | None:
    """Return what the models predict for a method, or None for a method that they are not about.

    Transfers are those of the whole ring with their latencies: a token leaves the draft node, and the result
    comes back to it. Where the draft node draws the tokens, its step holds the drawing too.
    """
    made = make_strategy(strategy, options)
    if isinstance(made, Autoregressive):
        times = LevelTimes(emulation, emulation.num_stages)
        latency = plain_latency([*times.computing(1), times.drawing()], times.arriving(1))
        return PredictedLatency(latency, None)
    if not isinstance(made, LevelByLevel) or hit_rate is None or not made.single_level_steps:
        return None
    width, times = made.settings.width, LevelTimes(emulation, made.settings.groups)
    one, level, transfers = times.computing(1), times.computing(width), times.arriving(width)
    of_draft_node = times.drafting(width) + times.drawing()
    return PredictedLatency(
        pipedec_latency(of_draft_node, one, transfers, max(level) / max(one)),
        time_between_tokens([*level, *transfers], of_draft_node, hit_rate),
    )
