"""What the page shows of the cluster, as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowedge.client.activity import PipelineActivity, PipelineState
from flowedge.client.device import Device
from flowedge.core.ids import stage_name
from flowedge.core.plain_text import visible_field
from flowedge.discovery.presence import Sighting
from flowedge.gateway.page.devices import DeviceReply
from flowedge.gateway.pipelines.member import PoolMember
from flowedge.gateway.pipelines.opening import DeviceProgress, SetUpProgress

DRAFT_NODE, STAGE, MIDDLE = "draft node", "stage", "middle"
MOST_NAME = 100  # characters of what devices tell
MOST_OTHERS = 100
MOST_REASON = 300  # characters


def pipeline_devices(draft_node: Device) -> list[tuple[str, str]]:
    """Return the address and the part of each device behind a draft node, in pipeline order."""
    stages = [(address, STAGE) for address in draft_node.stage_addresses]
    return [*stages, *((address, MIDDLE) for address in draft_node.middle_addresses)]


def of_pipeline(
    member: PoolMember, devices: Sequence[tuple[DeviceReply, str]], state: PipelineState | None
) -> dict[str, Any]:
    """Return a pipeline of the gateway.

    Args:
        devices: what the devices answered, and their parts; the draft node first.
        state: what the draft node told last; None while it is not watched.
    """
    draft_node = devices[0][0].device if devices and member.ready else None
    machines: dict[str, int] = {}  # numbers of the machines, by the hosts of addresses
    shown, problem = [], member.problem if member.recovering else ""
    for reply, _ in devices:
        problem = problem.replace(reply.address, reply.device.name if reply.device else "that is not known")
    for reply, part in devices:
        number = machines.setdefault(reply.address.rpartition(":")[0], len(machines))
        device = of_device(reply, part, in_use=member.ready)
        shown.append({**device, "machine": number, "lost": _is_lost(device, problem)})
    return {
        "name": member.label,
        "model": member.model,
        "ready": member.ready,
        "recovering": visible_field(problem, MOST_REASON),
        "plan": "" if draft_node is None else visible_field(draft_node.plan, MOST_REASON),
        "proposal": "" if draft_node is None else visible_field(draft_node.proposal, MOST_REASON),
        "leases": member.leases,
        "devices": shown,
        "progress": of_devices(member.progress),
        "state": None if state is None else of_state(state),
    }


def _is_lost(device: Mapping[str, Any], problem: str) -> bool:
    """Return whether a pipeline recovers from the loss of a device: it is away, or the problem names it."""
    return bool(problem) and (not device["present"] or f"device {device['name']}:" in problem)


def of_device(reply: DeviceReply, part: str, *, in_use: bool) -> dict[str, Any]:
    """Return a device of a pipeline; only what it is, without its address."""
    device = reply.device
    if device is None:
        return {"id": "", "name": "", "part": part, "present": False}
    holds = in_use and reply.present and not reply.is_idle
    beside = part == STAGE and device.role == DRAFT_NODE  # the draft node is a stage as well
    name = stage_name(device.name) if beside else device.name
    layers = device.layers if holds and device.layers[1] and part != DRAFT_NODE else None
    return {
        "id": device.id,
        "name": visible_field(name, MOST_NAME),
        "part": part,
        "present": reply.present,
        "kind": visible_field(device.kind, MOST_NAME),
        "compute": visible_field(device.compute.device, MOST_NAME),
        "processor": visible_field(device.compute.processor, MOST_NAME),
        "memory_total": device.memory_total,
        "memory_available": device.memory_available,
        "weight_bytes": device.weight_bytes if holds and not beside else 0,
        "cache_bytes": device.cache_bytes if holds and part != DRAFT_NODE else 0,
        "resident_bytes": device.resident_bytes,
        "temperature": device.temperature,
        "throttled": visible_field(device.throttled, MOST_NAME),
        "layers": None if layers is None else list(layers),
        "model": visible_field(device.model, MOST_NAME) if holds else "",
        "drafter": visible_field(device.drafter, MOST_NAME) if holds else "",
        "quant": device.quant if holds else "",
        "dtype": device.dtype if holds else "",
        "version": device.version,
        "round_trip_s": reply.round_trip_s,
    }


def of_other(sighting: Sighting) -> dict[str, Any]:
    """Return a device that was seen on the network and belongs to no pipeline of the gateway."""
    device = sighting.device
    return {
        "id": device.id,
        "name": visible_field(device.name, MOST_NAME),
        "kind": visible_field(device.kind, MOST_NAME),
        "compute": visible_field(device.compute, MOST_NAME),
        "memory_total": device.memory_total,
        "present": not sighting.stale,
    }


def of_devices(progress: DeviceProgress) -> list[dict[str, Any]]:
    return [of_progress(name, each) for name, each in progress.devices.items()]


def of_progress(name: str, progress: SetUpProgress) -> dict[str, Any]:
    transfer = progress.transfer
    shown: dict[str, Any] = {"device": visible_field(name, MOST_NAME)}
    if transfer is not None:
        shown |= {"done": transfer.done, "total": transfer.total}
        shown |= {"bytes_per_s": transfer.rate, "left_s": transfer.left_s}
    return shown


def of_state(state: PipelineState) -> dict[str, Any]:
    return {
        "running": state.running,
        "waiting": state.waiting,
        "tokens_per_s": round(state.tokens_per_s, 2),
        "tokens_per_segment": round(state.tokens_per_segment, 3),
        "links": [
            {
                "sender": link.sender,
                "receiver": link.receiver,
                "round_trip_s": link.round_trip_s,
                "bytes_per_s": link.bytes_per_s,
                "sent_bytes_per_s": round(link.sent_bytes_per_s),
            }
            for link in state.links
        ],
    }


def of_activity(pipeline: str, told: PipelineActivity, names: Mapping[str, int]) -> dict[str, Any]:
    """Return activity without the texts of tokens and the names of sessions.

    names: a number for each session, by its name.
    """
    return {
        "pipeline": pipeline,
        "now": round(told.now, 5),
        "incomplete": told.incomplete,
        "state": None if told.state is None else of_state(told.state),
        "computed": [
            [each.device, names[each.session], each.kind, round(each.start, 5), round(each.end, 5), each.rows]
            for each in told.computed
        ],
        "trees": [
            {
                "session": names[change.session],
                "at": round(change.at, 5),
                "kind": change.kind,
                "reason": change.reason,
                "nodes": [[node.number, node.parent, round(node.score, 3)] for node in change.nodes],
            }
            for change in told.trees
        ],
    }


def with_texts(
    activity: Mapping[str, Any], told: PipelineActivity, readable: Collection[str]
) -> dict[str, Any]:
    """Return activity with the texts of the nodes of the trees of these sessions."""
    trees = [
        {**shown, "texts": [node.text for node in change.nodes]} if change.session in readable else shown
        for shown, change in zip(activity["trees"], told.trees, strict=True)
    ]
    return {**activity, "trees": trees}
