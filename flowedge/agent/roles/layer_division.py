"""How a draft node divides the layers of its model over its stages: by what each of them measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.device.memory import read_memory_of
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.live_fleet import HEAD_ROOM, live_fleet, measure_options, profile_of_measured
from flowedge.planning.profile.device import DeviceProfile
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide, OpenedTarget
    from flowedge.agent.roles.coordinator import ReportProgress
    from flowedge.planning.placement.goal import Goal


async def divided(
    agent: Agent,
    side: ComputeSide,
    config: PipelineConfig,
    opened: OpenedTarget,
    stages: Mapping[str, pb.Device],
    report: ReportProgress,
) -> PipelineConfig:
    """Return the settings with the layers of each stage, where they leave that open and it matters.

    A pipeline that is set up again after a loss is divided as before, so that its stages need not load anew;
    over fewer stages, by what was measured before.

    stages: by address, what each says of itself, in the order of the layers.
    """
    again, known = bool(agent.recovering), agent.division
    if config.split or len(stages) < 2:
        return config
    if again and known is not None and (known.model, len(known.split)) == (config.model, len(stages)):
        return config.changed(split=known.split)
    try:
        fast = {device.name: device.compute.dtypes for device in stages.values()}
        goal = await agent.run(lambda: side.goal(config, opened, fast))
        fleet = await _measured(agent, goal, stages, report, only_stored=again)
        if fleet is None:
            return config
        found = await agent.run(lambda: side.divide(goal, fleet, agent.name, [*stages]))
    except (
        BadRequestError,
        CapacityError,
    ) as error:  # of the plan alone
        await report(agent.name, f"divides the layers evenly: {error}")
        return config
    await report(agent.name, str(found))
    agent.division = side.known_division(config.model, found.split)
    return config.changed(split=found.split)


async def _measured(
    agent: Agent,
    goal: Goal,
    stages: Mapping[str, pb.Device],
    report: ReportProgress,
    *,
    only_stored: bool,
) -> Fleet | None:
    """Return this device, by its name, and the stages, by their addresses; None without all measurements."""
    if not goal.is_worth_measuring:
        return None
    options = measure_options(goal.model, goal.quant)
    reserve = agent.config.memory.reserve_bytes
    fleet = await live_fleet(stages, options, report, reserve_bytes=reserve, only_stored=only_stored)
    asked = agent.speed.like(options)
    found = agent.speed.stored(asked)
    if found is None and not only_stored:
        await report(agent.name, "measures how fast it computes this model, once")
        found = await agent.speed.measure(asked, lambda _: None)
    if found is None or len(fleet.devices) < len(stages):
        return None
    memory = HEAD_ROOM * read_memory_of(asked.compute, agent.config.memory).available - reserve
    own: DeviceProfile = profile_of_measured(found, memory)
    return Fleet({**fleet.devices, agent.name: own}, fleet.link, {})
