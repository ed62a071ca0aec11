"""How a draft node divides the layers of its model over its stages: by what each of them measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from flowedge.agent.roles.other_agents import all_or_none, describe, prepare
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.device.memory import read_memory_of
from flowedge.planning.measuring.link_sender import LinkLimits, LinkSender
from flowedge.planning.measuring.measure import link_measured_by, link_of_reply
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.live_fleet import (
    live_devices,
    measure_options,
    profile_of_measured,
    usable_bytes,
)
from flowedge.planning.placement.measured_links import UNKNOWN, measured_links, usual_link, words
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide, OpenedTarget
    from flowedge.agent.roles.coordinator import ReportProgress
    from flowedge.planning.placement.goal import Goal
    from flowedge.planning.placement.live_division import Division
    from flowedge.planning.profile.link import LinkProfile
    from flowedge.planning.profile.measurement import LinkMeasurement

LINK_BYTES, LINK_ROUND_TRIPS = 2 << 20, 10  # by which a link is measured: 0.02 s at 1 Gbit/s


class OtherDraftNodeError(DeviceError):
    """A device that is not to be the draft node, since answers are clearly faster with another one.

    Attributes:
        address: of the other one.
    """

    def __init__(self, device: str, name: str, address: str) -> None:
        super().__init__(device, f"answers are faster with {name} as the draft node")
        self.address = address


async def divided(
    agent: Agent,
    side: ComputeSide,
    config: PipelineConfig,
    opened: OpenedTarget,
    stages: Mapping[str, pb.Device],
    report: ReportProgress,
    *,
    chooses: bool,
    hands_on: bool = False,
) -> Division | None:
    """Return the stages and the layers of each; None for the given stages, and what the settings say.

    A pipeline that is set up again after a loss is divided as before, so that its stages need not load anew;
    over fewer stages, by what was measured before.

    Args:
        stages: by address, what each says of itself, in the order of the layers; this device may be one.
        chooses: whether stages may be left out, and be in another order.
        hands_on: whether another device may be named as the draft node.

    Raises:
        OtherDraftNodeError: when answers are clearly faster with that one.
    """
    again, before = bool(agent.recovering), agent.division
    if config.split or (len(stages) < 2 and not chooses):
        return None
    if again and before is not None and before.holds_for(config.model, len(stages)):
        return replace(before, stages=tuple(stages))
    try:
        fast = {device.name: device.compute.dtypes for device in stages.values()}
        goal = await agent.run(lambda: side.goal(config, opened, fast))
        fleet = await _measured(agent, goal, stages, report, only_stored=again)
        if fleet is None or (not chooses and not set(stages) <= set(fleet.devices)):
            return None
        draft_node = address_here(agent, stages) or agent.name
        others = [each for each in stages if each != draft_node and may_lead(stages[each])]
        find = partial(side.choose, goal, fleet, draft_node, others if hands_on else ())
        if not chooses:
            find = partial(side.divide, goal, fleet, draft_node, [*stages])
        found = await agent.run(find)
    except FlowEdgeError as error:
        if isinstance(error, DeviceError) and error.device != agent.name:
            raise
        # The plan's alone, such as a model of another kind: it is set up without one.
        await report(agent.name, f"divides the layers evenly: {error}")
        return None
    names = {address: device.name for address, device in stages.items()}
    if found.draft_node in names and found.draft_node != draft_node:
        raise OtherDraftNodeError(agent.name, names[found.draft_node], found.draft_node)
    await report(agent.name, found.words(names))
    agent.division = found
    return found


async def _measured(
    agent: Agent,
    goal: Goal,
    stages: Mapping[str, pb.Device],
    report: ReportProgress,
    *,
    only_stored: bool,
) -> Fleet | None:
    """Return this device and the stages that have measured; None without this device.

    They have their addresses as names, and this device its own name if it is no stage.
    """
    if not goal.is_worth_measuring:
        return None
    options = measure_options(goal.model, goal.quant)
    reserve, link = agent.config.memory.reserve_bytes, agent.config.link
    own = address_here(agent, stages)
    others = {address: device for address, device in stages.items() if address != own}
    if not only_stored:  # the libraries, which every stage needs, take memory
        await all_or_none(prepare(address, link) for address in others)
        answers = await all_or_none(describe(address, link) for address in others)
        others = dict(zip(others, answers, strict=True))
    devices = await live_devices(others, options, report, reserve_bytes=reserve, only_stored=only_stored)
    asked = agent.speed.like(options)
    found = agent.speed.stored(asked)
    if found is None and not only_stored:
        await report(agent.name, "measures how fast it computes this model, once")
        found = await agent.speed.measure(asked, lambda _: None)
    if found is None:
        return None
    available = read_memory_of(asked.compute, agent.config.memory).available
    here = own or agent.name
    devices[here] = profile_of_measured(found, usable_bytes(available, reserve))
    names = {here: agent.name, **{address: device.name for address, device in others.items()}}
    links = await _links(agent, here, others, report, names, only_stored=only_stored)
    usual, unusual = usual_link(links, goal.segment_bytes)
    if links:
        await report(agent.name, words(usual, unusual, names))
    return Fleet(devices, usual, unusual)


async def _links(
    agent: Agent,
    here: str,
    others: Mapping[str, pb.Device],
    report: ReportProgress,
    names: Mapping[str, str],
    *,
    only_stored: bool,
) -> dict[frozenset[str], LinkProfile]:
    """Return the links between this device and the others, by their addresses; each is measured once.

    here: what this device is called among them; names: of all.
    """
    ids = {here: agent.info.id, **{address: device.id for address, device in others.items()}}
    key = {frozenset(pair): frozenset(ids[each] for each in pair) for pair in combinations(ids, 2)}

    async def measure(sender: str, receiver: str) -> LinkMeasurement:
        amount = {"num_bytes": LINK_BYTES, "round_trips": LINK_ROUND_TRIPS}
        if sender != here:
            return await link_measured_by(sender, receiver, ids[receiver], **amount)
        own = LinkSender(receiver, ids[receiver], agent.config.link, LinkLimits())
        return link_of_reply(await own.measure(**amount), agent.name)

    async def failed(sender: str, receiver: str, error: FlowEdgeError) -> None:
        what = f"its link with {names[receiver]} counts as {UNKNOWN}, since it was not measured"
        await report(names[sender], f"{what}: {error}")

    if not only_stored:
        missing = [pair for pair in combinations(ids, 2) if key[frozenset(pair)] not in agent.links]
        for pair, link in (await measured_links(missing, measure, failed)).items():
            agent.links[key[pair]] = link
    return {pair: agent.links[known] for pair, known in key.items() if known in agent.links}


def may_lead(device: pb.Device) -> bool:
    """Return whether a device may be a draft node; outside of a cluster every device may."""
    roles = device.certified_role.split(",")
    return not device.certified_role or CertificateRole.DRAFT_NODE.value in roles


def address_here(agent: Agent, stages: Mapping[str, pb.Device]) -> str:
    """Return the address by which this device is one of the stages; "" if it is none."""
    own = agent.info.instance
    return next((address for address, device in stages.items() if device.instance == own), "")
