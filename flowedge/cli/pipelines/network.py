"""The choice of agents of the network for a pipeline: one that is ready, or idle agents for a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flowedge.agent.config_loading import load_config
from flowedge.cli.pipelines.answering import ask_all, split_idle
from flowedge.cli.pipelines.last_draft_node import KnownDraftNode, LastDraftNodes
from flowedge.cli.pipelines.model_choice import model_label
from flowedge.cli.pipelines.planned_pipeline import PlannedPipeline, await_pipeline
from flowedge.cli.pipelines.request import PipelineRequest, split_text
from flowedge.client import Device
from flowedge.client.aio import AsyncClient
from flowedge.client.assembly import OnProgress
from flowedge.client.loop_thread import run
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.process import current
from flowedge.core.errors import AccessError, BadRequestError, DeviceError, FlowEdgeError
from flowedge.core.plain_text import counted
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.discovery.settings import DiscoverySettings
from flowedge.version import PROTOCOL_VERSION

_log = logging.getLogger(__name__)


def last_draft_nodes() -> LastDraftNodes:
    """Return the memory of the network that this process searches."""
    return LastDraftNodes(current().cluster, load_config().config.discovery.group)


def remember(draft_node: str, device: Device) -> None:
    """Have the next command ask the draft node at this address while it searches the network."""
    last_draft_nodes().remember(KnownDraftNode(device.name, device.id, draft_node))


def plan_on_network(
    request: PipelineRequest, report: OnProgress, with_model: Callable[[PipelineRequest], PipelineRequest]
) -> PlannedPipeline:
    """Plan a pipeline on agents of the network; the draft node that answered last is asked during the search.

    Args:
        with_model: completes a request without a model, if no pipeline that runs serves it.

    Raises:
        AccessError: when no idle agent may be a draft node, or all agents belong to other clusters.
        BadRequestError: when there are fewer idle agents than the split has stages.
        FlowEdgeError: when there are too few idle agents, or no agent answers.
    """
    settings, known = load_config().config.discovery, last_draft_nodes().recall()
    seen = run(_search(request, settings, known))
    if isinstance(seen, Device):
        assert known is not None, "it is the device that was asked for"
        return _ready(request, known.address, seen, report)
    devices = ask_all(seen, settings.peers, request.discover_s, least=2 + len(request.middles))
    for address, device in devices.items():
        if request.is_served_by(address, device):
            return _ready(request, address, device, report)
    for address, device in devices.items():
        if device.not_ready and not request.model:
            if request.wait_s is None:  # the caller waits by itself
                return PlannedPipeline(address, request, None, ready=True, found=device)
            told = await_pipeline(address, device, request.wait_s, report)
            if request.is_served_by(address, told):
                return _ready(request, address, told, report)
    return plan_on_idle(request, devices, report, with_model, hands_on=True)


def _ready(request: PipelineRequest, address: str, device: Device, report: OnProgress) -> PlannedPipeline:
    report(device.name, f"has the pipeline of {model_label(device.model)} ready")
    assert device.config is not None, "a draft node tells the settings of its pipeline"
    complete = request.completed_by(device.config)
    if not request.model:  # which may change while the command runs
        return PlannedPipeline(address, complete, None, ready=True, found=device)
    spec = complete.spec(address, (*device.stage_addresses, *device.middle_addresses))
    return PlannedPipeline(address, complete, spec, ready=True, found=device)


async def _search(
    request: PipelineRequest, settings: DiscoverySettings, known: KnownDraftNode | None
) -> Device | list[AdvertisedDevice]:
    """Return the known draft node if it has the pipeline ready, or else the agents that are announced."""
    searching = asyncio.ensure_future(discover(request.discover_s, settings=settings))
    asking = asyncio.ensure_future(_ask_known(request, known))
    try:
        await asyncio.wait({searching, asking}, return_when=asyncio.FIRST_COMPLETED)
        if searching.done() and searching.exception() is not None:
            await asyncio.wait({asking})  # which may do without the search
        if asking.done() and (ready := asking.result()) is not None:
            return ready
        return await searching
    finally:
        for task in (searching, asking):
            task.cancel()
        await asyncio.gather(searching, asking, return_exceptions=True)


async def _ask_known(request: PipelineRequest, known: KnownDraftNode | None) -> Device | None:
    """Return a known draft node if it is still that device and has the pipeline ready."""
    if known is None:
        return None
    try:
        async with AsyncClient(known.address, name=known.name) as client:
            device = await client.describe()
            if (device.name, device.id) != (known.name, known.id):
                raise DeviceError(known.name, f"{device.name} (id {device.id}) answers at {known.address}")
            fits = device.protocol_version == PROTOCOL_VERSION and request.is_served_by(known.address, device)
            return device if fits else None
    except Exception as error:  # noqa: BLE001 (whatever answers there now, the network is searched as well)
        _log.debug("the last draft node is not used: %s", error)
        return None


def plan_on_idle(
    request: PipelineRequest,
    devices: dict[str, Device],
    report: OnProgress,
    with_model: Callable[[PipelineRequest], PipelineRequest],
    *,
    hands_on: bool = False,
) -> PlannedPipeline:
    """Plan a new pipeline on the idle ones of these devices, the first of which is to be the draft node.

    hands_on: whether the first one names another draft node, if answers are clearly faster with that.

    Raises:
        AccessError: when no idle agent may be a draft node.
        BadRequestError: when there are fewer idle agents than the split has stages.
        FlowEdgeError: when there are too few idle agents.
    """
    idle, busy = split_idle(devices)
    # One that is left of several is not taken for a whole pipeline.
    needed = (2 if busy else 1) + len(request.middles)
    if len(idle) < needed:
        besides = f", besides {busy}{_advice(request, devices)}" if busy else ""
        beside = f", and one for each of {len(request.middles)} middle models" if request.middles else ""
        raise FlowEdgeError(
            f"a pipeline needs {needed} idle agents or more, for a draft node and a stage{beside}; "
            f"{len(idle)} found{besides}"
        )
    request = with_model(request)
    draft_node, *others = _leader_first(idle, devices)
    last = len(others) - len(request.middles)
    stages, middles = others[:last], others[last:]
    stages = stages or [draft_node]  # which then has all layers as well
    wanted = len(request.split) or len(stages)
    if wanted > len(stages):
        raise BadRequestError(
            f"--split {split_text(request.split)} is for {wanted} stages, but only {len(stages)} idle agents "
            "are left"
        )
    stages = stages[:wanted]
    alone = "is the draft node, and the only stage as well"
    beside = f"is the draft node of {counted(len(stages), 'stage')}"
    report(devices[draft_node].name, alone if stages == [draft_node] else beside)
    chooses = not request.split and stages != [draft_node]
    wanted_pipeline = request.spec(draft_node, (*stages, *middles)).changed(
        chooses=chooses, hands_on=chooses and hands_on
    )
    return PlannedPipeline(draft_node, request, wanted_pipeline, ready=False, found=devices[draft_node])


def _advice(request: PipelineRequest, devices: dict[str, Device]) -> str:
    """Return how to get at the devices of a pipeline that runs and is not what was asked for."""
    running = [device for device in devices.values() if device.stage_addresses]
    if not running:
        return "; free them with flowedge release NAME"
    there = ", ".join(f"{model_label(device.model)} on {device.name}" for device in running)
    use = f"flowedge use {request.model or 'MODEL'}"
    return f"; {there} is running: leave --model and its settings out to ask that, or change it with {use}"


def _leader_first(idle: list[str], devices: dict[str, Device]) -> list[str]:
    """Put first an agent that may be a draft node, an admin's last; outside of a cluster every agent may.

    Raises:
        AccessError: when no agent may be a draft node.
    """
    if not current().cluster:
        return idle
    roles = {address: devices[address].certified_role.split(",") for address in idle}
    leaders = [
        address
        for leading in (CertificateRole.DRAFT_NODE, CertificateRole.ADMIN)
        for address in idle
        if leading.value in roles[address]
    ]
    if not leaders:
        raise AccessError(
            "no idle agent may be a draft node; have a device join with a token of "
            "`flowedge cluster token --role draft-node`"
        )
    return [leaders[0], *(address for address in idle if address != leaders[0])]
