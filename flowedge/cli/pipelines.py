"""Which agents serve a command: local ones started for it, named ones, or those on the network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.discovery_options import discovery_settings
from flowedge.client import Client, Device
from flowedge.client.assembly import OnProgress, PipelineSpec, assemble
from flowedge.client.device import IDLE
from flowedge.client.survey import other_device
from flowedge.client.transfer import OnTransfer
from flowedge.core.errors import AccessError, BadRequestError, DeadlineError, FlowEdgeError, ProtocolError
from flowedge.discovery.device_record import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.net.address import is_loopback
from flowedge.placement.split import split_counts
from flowedge.security.credentials.certificate_role import CertificateRole
from flowedge.security.process import current

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineRequest:
    """What the command line asks for; at most one of `stages` and `peers` is given.

    Attributes:
        stages: number of local stage agents to start for the run.
        peers: addresses, the draft node's first, then the stages' in order, then those of the middle models.
        middles: middle models of a hierarchy, the smallest first.
        discover_s: how long to look for agents when neither is given.
    """

    model: str
    drafter: tuple[str, ...]
    quant: str = "none"
    split: str | None = None
    stages: int | None = None
    peers: tuple[str, ...] | None = None
    discover_s: float = 3.0
    middles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """BadRequestError for what cannot be asked for together."""
        if self.stages is not None and self.peers is not None:
            raise BadRequestError("give either --stages or --peers")
        if self.split is not None:
            counts = split_counts(self.split)
            stages = self.stages if self.peers is None else len(self.peers) - 1 - len(self.middles)
            if stages is not None and len(counts) != stages:
                raise BadRequestError(
                    f"--split {self.split} is for {len(counts)} stages, but there are {stages}"
                )

    def spec(self, draft_node: str, stages: tuple[str, ...], middles: tuple[str, ...] = ()) -> PipelineSpec:
        """The pipeline over these agents. BadRequestError without one for each middle model."""
        if len(middles) != len(self.middles):
            raise BadRequestError(
                f"{len(self.middles)} middle models take an agent each, but {len(middles)} are left for them"
            )
        return PipelineSpec(
            draft_node=draft_node,
            stages=stages,
            model=self.model,
            drafter=self.drafter,
            quant=self.quant,
            split=tuple(split_counts(self.split)) if self.split is not None else (),
            middles=tuple(zip(self.middles, middles, strict=True)),
        )

    def over(self, draft_node: str, others: tuple[str, ...]) -> PipelineSpec:
        """The pipeline over these agents, of which the last are for the middle models."""
        stages = max(len(others) - len(self.middles), 0)
        return self.spec(draft_node, others[:stages], others[stages:])

    def is_served_by(self, address: str, device: Device) -> bool:
        """Whether the draft node at an address has just such a pipeline."""
        if not device.stage_addresses or len(device.middles) != len(self.middles):
            return False
        middles = tuple(middle for _, middle in device.middles)
        return self.spec(address, device.stage_addresses, middles).is_served_by(device)


@contextmanager
def open_pipeline(
    request: PipelineRequest, report: OnProgress, on_transfer: OnTransfer = lambda *_: None
) -> Iterator[str]:
    """The address of a draft node whose pipeline is ready; agents started for it end with the context.

    on_transfer: told how far devices are with fetching their weights.
    """
    if request.stages is not None:
        cluster = LocalCluster(request.stages, middles=len(request.middles))
        beside = f", and {len(request.middles)} for middle models" if request.middles else ""
        report("this machine", f"starting a draft node and {request.stages} stage agents{beside}")
        with cluster:
            spec = _local_spec(request, cluster)
            assemble(spec, report, on_transfer=on_transfer)
            yield spec.draft_node
    elif request.peers is not None:
        yield _use_peers(request, request.peers, report, on_transfer)
    else:
        yield _use_discovered(request, report, on_transfer)


def _local_spec(request: PipelineRequest, cluster: LocalCluster) -> PipelineSpec:
    return request.over(cluster.draft_node.address, tuple(agent.address for agent in cluster.agents[1:]))


def _use_peers(
    request: PipelineRequest, peers: tuple[str, ...], report: OnProgress, on_transfer: OnTransfer
) -> str:
    draft_node = describe(peers[0])
    if len(peers) == 1:
        if not draft_node.stage_addresses:
            raise BadRequestError(
                f"{peers[0]} is no draft node; name the draft node first, then the stages in order"
            )
        return peers[0]
    spec = request.over(peers[0], peers[1:])
    if not spec.is_served_by(draft_node):
        assemble(spec, report, on_transfer=on_transfer)
    return peers[0]


def find_devices(discover_s: float, least: int) -> dict[str, Device]:
    """The agents found on the network by address: of those on loopback, where fewer than `least` are not.

    DeadlineError when none answers, ProtocolError for one of another version.
    """
    settings = discovery_settings()
    records = asyncio.run(discover(discover_s, settings=settings))
    if not records and not settings.peers:
        raise DeadlineError(
            f"no agent answered within {discover_s:g} s: start some with `flowedge agent`, name "
            "them with --peers host:port,..., or use --stages N to start them here for this run"
        )
    ours = _of_this_cluster(records, settings.peers)
    for record in ours:
        if record.mismatch:
            raise ProtocolError(record.mismatch)
    named = _answering_peers(settings.peers)
    known = {device.instance for device in named.values() if device.instance}
    found = [record for record in ours if record.instance not in known]
    return named | dict(answering(record) for record in _reachable(found, least - len(named)))


def _of_this_cluster(records: list[AdvertisedDevice], peers: tuple[str, ...]) -> list[AdvertisedDevice]:
    """Devices of this machine's cluster; the log names the others. AccessError when there are only others."""
    foreign = {record.id: current().foreign(record.name, record.cluster) for record in records}
    reasons = [reason for reason in foreign.values() if reason is not None]
    for reason in reasons:
        _log.warning("ignored: %s", reason)
    if reasons and len(reasons) == len(records) and not peers:
        raise AccessError(
            f"all agents that answered are of other clusters: {'; '.join(reasons)}. Join it with a token "
            "of it (flowedge join TOKEN), or let them join this one's"
        )
    return [record for record in records if foreign[record.id] is None]


def _answering_peers(peers: tuple[str, ...]) -> dict[str, Device]:
    """The agents of the configuration that answer, by address."""
    devices = {}
    for peer in peers:
        try:
            devices[peer] = describe(peer)
        except FlowEdgeError as error:
            _log.warning("the peer %s of the configuration is left out: %s", peer, error)
    return devices


def answering(record: AdvertisedDevice) -> tuple[str, Device]:
    """The first address of a device at which it answers. Raises the error of the last one when none does."""
    *others, last = record.addresses
    for address in others:
        try:
            return address, _described_as(record, address)
        except FlowEdgeError as error:
            _log.info("%s is not reached at %s: %s", record.name, address, error)
    return last, _described_as(record, last)


def _described_as(record: AdvertisedDevice, address: str) -> Device:
    device = describe(address, record.name)
    if device.id != record.id:
        raise other_device(address, record, device)
    return device


def _use_discovered(request: PipelineRequest, report: OnProgress, on_transfer: OnTransfer) -> str:
    devices = find_devices(request.discover_s, least=2 + len(request.middles))
    for address, device in devices.items():
        if request.is_served_by(address, device):
            report(device.name, "has the pipeline ready")
            return address
    return _assemble_idle(request, devices, report, on_transfer)


def _assemble_idle(
    request: PipelineRequest, devices: dict[str, Device], report: OnProgress, on_transfer: OnTransfer
) -> str:
    idle = [address for address, device in devices.items() if device.role == IDLE]
    needed = 2 + len(request.middles)
    if len(idle) < needed:
        busy = [f"{device.name} ({device.role})" for device in devices.values() if device.role != IDLE]
        raise FlowEdgeError(
            f"{_needs(len(request.middles))}; {len(idle)} found"
            + (
                f", besides {', '.join(busy)}; name agents with --peers to give them a new role"
                if busy
                else ""
            )
        )
    idle = _leader_first(idle, devices)
    last = len(idle) - len(request.middles)
    stages, middles = idle[1:last], idle[last:]
    if request.split is not None:
        wanted = len(split_counts(request.split))
        if wanted > len(stages):
            raise BadRequestError(
                f"--split {request.split} is for {wanted} stages, but only {len(stages)} idle agents are left"
            )
        stages = stages[:wanted]
    report(devices[idle[0]].name, f"is the draft node of {len(stages)} stages")
    assemble(request.spec(idle[0], tuple(stages), tuple(middles)), report, on_transfer=on_transfer)
    return idle[0]


def _leader_first(idle: list[str], devices: dict[str, Device]) -> list[str]:
    """In a cluster, the first has to be one that may be a draft node. AccessError for none."""
    if not current().cluster:
        return idle
    leaders = [
        address for address in idle if devices[address].certified_role == CertificateRole.DRAFT_NODE.value
    ]
    if not leaders:
        raise AccessError(
            "none of the idle agents may be a draft node; join one with a token of "
            "`flowedge cluster token --role draft-node`"
        )
    return [leaders[0], *(address for address in idle if address != leaders[0])]


def _needs(middles: int) -> str:
    if not middles:
        return "a pipeline needs two idle agents or more, a draft node and a stage"
    return (
        f"a pipeline with {middles} middle models needs {2 + middles} idle agents or more: a draft node, a "
        "stage, and one for each middle model"
    )


def _reachable(records: list[AdvertisedDevice], least: int) -> list[AdvertisedDevice]:
    """Devices that can reach each other: those on the network, or, if they are too few, those on loopback."""
    networked = [record for record in records if not is_loopback(record.address)]
    return networked if len(networked) >= least else [record for record in records if record not in networked]


def describe(address: str, name: str | None = None) -> Device:
    """What the agent at an address says of itself; `name` is what it has to be called in its cluster."""
    with Client(address, name=name) as client:
        return client.describe()
