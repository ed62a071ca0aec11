"""Which agents serve a command: local ones started for it, named ones, or those on the network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flowedge.client import Client, Device
from flowedge.client.assembly import PipelineSpec, Report, assemble
from flowedge.client.device import IDLE
from flowedge.cluster.address import is_loopback
from flowedge.cluster.discovery import discover
from flowedge.cluster.local import LocalCluster
from flowedge.cluster.record import DeviceRecord
from flowedge.cluster.split import split_counts
from flowedge.errors import BadRequestError, DeadlineError, FlowEdgeError, ProtocolError


@dataclass(frozen=True)
class PipelineRequest:
    """What the command line asks for; at most one of `stages` and `peers` is given.

    Attributes:
        stages: number of local stage agents to start for the run.
        peers: addresses, the draft node's first, then the stages' in order.
        discover_s: how long to look for agents when neither is given.
    """

    model: str
    drafter: str
    quant: str = "none"
    split: str | None = None
    stages: int | None = None
    peers: tuple[str, ...] | None = None
    discover_s: float = 3.0

    def __post_init__(self) -> None:
        """BadRequestError for what cannot be asked for together."""
        if self.stages is not None and self.peers is not None:
            raise BadRequestError("give either --stages or --peers")
        if self.split is not None:
            counts = split_counts(self.split)
            stages = self.stages if self.peers is None else len(self.peers) - 1
            if stages is not None and len(counts) != stages:
                raise BadRequestError(
                    f"--split {self.split} is for {len(counts)} stages, but there are {stages}"
                )

    def spec(self, draft_node: str, stages: tuple[str, ...]) -> PipelineSpec:
        """The pipeline over these agents."""
        return PipelineSpec(
            draft_node=draft_node,
            stages=stages,
            model=self.model,
            drafter=self.drafter,
            quant=self.quant,
            split=tuple(split_counts(self.split)) if self.split is not None else (),
        )


@contextmanager
def open_pipeline(request: PipelineRequest, report: Report) -> Iterator[str]:
    """The address of a draft node whose pipeline is ready; agents started for it end with the context."""
    if request.stages is not None:
        cluster = LocalCluster(request.stages)
        report("this machine", f"starting a draft node and {request.stages} stage agents")
        with cluster:
            spec = _local_spec(request, cluster)
            assemble(spec, report)
            yield spec.draft_node
    elif request.peers is not None:
        yield _use_peers(request, request.peers, report)
    else:
        yield _use_discovered(request, report)


def _local_spec(request: PipelineRequest, cluster: LocalCluster) -> PipelineSpec:
    return request.spec(cluster.draft_node.address, tuple(agent.address for agent in cluster.stages))


def _use_peers(request: PipelineRequest, peers: tuple[str, ...], report: Report) -> str:
    draft_node = describe(peers[0])
    if len(peers) == 1:
        if not draft_node.stage_addresses:
            raise BadRequestError(
                f"{peers[0]} is no draft node; name the draft node first, then the stages in order"
            )
        return peers[0]
    spec = request.spec(peers[0], peers[1:])
    if not spec.is_served_by(draft_node):
        assemble(spec, report)
    return peers[0]


def find_devices(discover_s: float, least: int) -> dict[str, Device]:
    """The agents found on the network by address: of those on loopback, where fewer than `least` are not.

    DeadlineError when none answers, ProtocolError for one of another version.
    """
    records = asyncio.run(discover(discover_s))
    if not records:
        raise DeadlineError(
            f"no agent answered within {discover_s:g} s: start some with `flowedge agent`, name "
            "them with --peers host:port,..., or use --stages N to start them here for this run"
        )
    for record in records:
        if record.mismatch:
            raise ProtocolError(record.mismatch)
    return {record.address: describe(record.address) for record in _reachable(records, least)}


def _use_discovered(request: PipelineRequest, report: Report) -> str:
    devices = find_devices(request.discover_s, least=2)
    for address, device in devices.items():
        if device.stage_addresses and request.spec(address, device.stage_addresses).is_served_by(device):
            report(device.name, "has the pipeline ready")
            return address
    return _assemble_idle(request, devices, report)


def _assemble_idle(request: PipelineRequest, devices: dict[str, Device], report: Report) -> str:
    idle = [address for address, device in devices.items() if device.role == IDLE]
    if len(idle) < 2:
        busy = [f"{device.name} ({device.role})" for device in devices.values() if device.role != IDLE]
        raise FlowEdgeError(
            f"a pipeline needs two idle agents or more, a draft node and a stage; {len(idle)} found"
            + (
                f", besides {', '.join(busy)}; name agents with --peers to give them a new role"
                if busy
                else ""
            )
        )
    stages = idle[1:]
    if request.split is not None:
        wanted = len(split_counts(request.split))
        if wanted > len(stages):
            raise BadRequestError(
                f"--split {request.split} is for {wanted} stages, but only {len(stages)} idle agents are left"
            )
        stages = stages[:wanted]
    report(devices[idle[0]].name, f"is the draft node of {len(stages)} stages")
    assemble(request.spec(idle[0], tuple(stages)), report)
    return idle[0]


def _reachable(records: list[DeviceRecord], least: int) -> list[DeviceRecord]:
    """Devices that can reach each other: those on the network, or, if they are too few, those on loopback."""
    networked = [record for record in records if not is_loopback(record.address)]
    return networked if len(networked) >= least else [record for record in records if record not in networked]


def describe(address: str) -> Device:
    """What the agent at an address says of itself."""
    with Client(address) as client:
        return client.describe()
