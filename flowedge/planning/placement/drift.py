"""Whether layers had better lie elsewhere, by what the stages of a pipeline take now."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowedge.core.pipeline_config import LAST_STAGE, VerificationPlace
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import BOTH, Layout, divisions_of, layouts_in_order
from flowedge.planning.placement.live_division import Division
from flowedge.planning.profile.device import DeviceProfile

WORTH_MOVING = 1.15  # times as fast another division has to be
LEAST_WORK = 20  # segments of each stage from which its speed is taken

Work = Sequence[tuple[int, float]]
"""Rows and seconds of segments that a stage has computed."""


@dataclass(frozen=True)
class Move:
    """Another division of the layers.

    Attributes:
        gain: how many times as fast its rounds are.
        slowest: the device that has slowed down the most; slower: how many times as long as expected it
            takes, beside the others.
    """

    division: Division
    gain: float
    slowest: str
    slower: float

    def words(self, names: Mapping[str, str], takes_s: float | None) -> str:
        """Return what is proposed, in words.

        Args:
            names: of the devices, by address.
            takes_s: seconds of the last set-up; None where that is not known.
        """
        stages = zip(self.division.stages, self.division.split, strict=True)
        layers = ", ".join(f"{names.get(each, each)} {count}" for each, count in stages)
        cost = "" if takes_s is None else f"; moving takes about {takes_s:.0f} s"
        slowest = names.get(self.slowest, self.slowest)
        return (
            f"{slowest} takes {self.slower:.1f} times as long as expected; with the layers {layers} rounds "
            f"are {self.gain:.2f} times as fast{cost}"
        )


def move_for(division: Division, work: Mapping[str, Work], verification: VerificationPlace) -> Move | None:
    """Return another division if it is clearly faster; None if it is not, or too little is known.

    work: of each stage, by address. verification: where tokens are drawn.
    """
    factors = slower_by(division, work, verification)
    return None if factors is None else better_division(division, factors)


def slower_by(
    division: Division, work: Mapping[str, Work], verification: VerificationPlace
) -> dict[str, float] | None:
    """Return how many times as long as expected each stage takes, beside the one that keeps up best.

    What all stages have in common is the length of the text, which the plan does not know.

    Args:
        work: of each stage, by address.
        verification: where tokens are drawn; the last stage's time includes the LM head if that is there.

    Returns:
        None where a stage has not computed enough, or has not measured the model.
    """
    goal, devices = division.goal, division.fleet.devices
    found = dict[str, float]()
    for stage, layers in zip(division.stages, division.split, strict=True):
        done = work.get(stage, ())
        if len(done) < LEAST_WORK or stage not in devices:
            return None
        draws = verification == LAST_STAGE and stage == division.stages[-1]
        head_s = goal.head_time_s(devices[stage], 1) if draws else 0.0
        factor = statistics.median(
            seconds / (layers * goal.layer_time_s(devices[stage], rows) + head_s) for rows, seconds in done
        )
        if stage == division.draft_node:  # as far as it may come from drafting, it says nothing
            factor /= min(max(factor, 1.0), BOTH)
        found[stage] = factor
    least = min(found.values())
    return {stage: factor / least for stage, factor in found.items()}


def better_division(division: Division, factors: Mapping[str, float]) -> Move | None:
    """Return a division of the same stages that is clearly faster now; None where there is none.

    factors: see `slower_by`.
    """
    goal = division.goal
    devices = {
        name: slowed(device, factors.get(name, 1.0), goal) for name, device in division.fleet.devices.items()
    }
    fleet = replace(division.fleet, devices=devices)
    found = layouts_in_order(goal, fleet, division.draft_node, division.stages)
    if not found:
        return None
    now = min(map(_round_s, divisions_of(goal, fleet, division.draft_node, division.stages, division.split)))
    best = min(found, key=_round_s)
    gain = now / _round_s(best)
    if gain < WORTH_MOVING or best.split == division.split:
        return None
    slowest = max(factors, key=lambda name: factors[name])
    return Move(replace(division, split=best.split, fleet=fleet), gain, slowest, factors[slowest])


def slowed(device: DeviceProfile, factor: float, goal: Goal) -> DeviceProfile:
    """Return a device whose layers and LM head take so many times as long."""
    changes: dict[str, object] = {
        "memory_bandwidth_gb_s": device.memory_bandwidth_gb_s / factor,
        "tflops": device.tflops / factor,
        "layer_overhead_ms": device.layer_overhead_ms * factor,
    }
    if (found := device.measured) is not None and found.holds_for_layers(goal.model, goal.quant):
        times = {
            name: {rows: each * factor for rows, each in getattr(found, name).items()}
            for name in ("layer_ms", "states_ms", "verify_ms")
            if getattr(found, name)
        }
        changes["measured"] = found.model_copy(update={**times, "step_ms": found.step_ms * factor})
    return device.model_copy(update=changes)


def _round_s(layout: Layout) -> float:
    return layout.round_s + layout.slowest_s
