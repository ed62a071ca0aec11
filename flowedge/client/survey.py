"""What the agents that were found, and those that are named, say of themselves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from flowedge.client.clock_offset import ClockOffset
from flowedge.client.device import Device
from flowedge.client.sync import Client
from flowedge.core.errors import DeviceError, DeviceLostError, FlowEdgeError
from flowedge.discovery.device_record import AdvertisedDevice, mismatch
from flowedge.net.address import join_address, split_address
from flowedge.security.process import current, own_agents

ANSWER_S = 3.0  # an agent has so long for each answer
_EXCHANGES = 4  # the shortest round trip of these counts
_AT_ONCE = 16


@dataclass(frozen=True)
class AgentReply:
    """What an agent says; `round_trip` in seconds, `wall` its clock against ours if it tells."""

    device: Device
    round_trip: float
    wall: ClockOffset | None


@dataclass(frozen=True)
class Surveyed:
    """One agent.

    Attributes:
        addresses: all that are known, the one that answers first.
        record: what it advertises; None for one that is only named.
        answer: None when `problem` says why there is none; with an answer, `problem` is another version.
        stale: it is advertised, but nothing has been heard of it for longer than that is good for.
    """

    addresses: tuple[str, ...]
    record: AdvertisedDevice | None = None
    answer: AgentReply | None = None
    problem: str | None = None
    stale: bool = False

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def id(self) -> str:
        device = self._source
        return "" if device is None else device.id

    @property
    def name(self) -> str:
        device = self._source
        return self.address if device is None else device.name

    @property
    def instance(self) -> str:
        device = self._source
        return "" if device is None else device.instance

    @property
    def _source(self) -> Device | AdvertisedDevice | None:
        return self.record if self.answer is None else self.answer.device


Ask = Callable[[str, str | None], AgentReply]
"""Asks at an address; with a name, only one whose certificate has it."""


def ask(address: str, name: str | None = None, answer_s: float = ANSWER_S) -> AgentReply:
    """Describe and a few round trips. Raises the FlowEdgeError of what fails."""
    with Client(address, silence_s=answer_s, name=name) as client:
        device = client.describe()
        exchanges = client.exchange_clocks(_EXCHANGES)
    round_trip = min(exchange.round_trip for exchange in exchanges)
    return AgentReply(device, round_trip, ClockOffset.of_walls(exchanges))


def survey(
    records: Sequence[AdvertisedDevice],
    peers: Sequence[str] = (),
    *,
    stale: Iterable[AdvertisedDevice] = (),
    ask: Ask = ask,
) -> list[Surveyed]:
    """Asks them all, several at a time; sorted by name, an agent once however many ways lead to it.

    peers: addresses of agents that need not be advertised. stale: those of the records that are.
    """
    old = frozenset(stale)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        advertised = pool.map(lambda record: _of_record(record, record in old, ask), records)
        named = pool.map(lambda peer: _of_peer(peer, ask), peers)
        found = [*advertised, *named]
    return sorted(merge(found), key=lambda one: (one.name, one.id, one.address))


def merge(found: Iterable[Surveyed]) -> list[Surveyed]:
    """One of each agent, with all of its addresses.

    What does not answer and has the id of one that does is an earlier start of it, and left out. What is
    named and does not answer is left out when an agent is advertised at the address.
    """
    agents: dict[tuple[str, ...], Surveyed] = {}
    for one in found:
        key = (one.id, one.instance) if one.instance else (one.id, one.address)
        known = agents.get(key)
        if known is None:
            agents[key] = one
        else:
            addresses = dict.fromkeys((*known.addresses, *one.addresses))
            agents[key] = replace(known, addresses=tuple(addresses), record=known.record or one.record)
    answering = {one.id for one in agents.values() if one.answer is not None}
    advertised = {address for one in agents.values() if one.record is not None for address in one.addresses}
    return [
        one
        for one in agents.values()
        if one.answer is not None
        or not (one.id in answering or (one.record is None and one.address in advertised))
    ]


def _of_record(record: AdvertisedDevice, stale: bool, ask: Ask) -> Surveyed:
    if record.mismatch:
        return Surveyed(record.addresses, record, problem=record.mismatch, stale=stale)
    try:
        foreign = current().foreign(record.name, record.cluster)
    except FlowEdgeError as error:
        foreign = str(error)
    if foreign is not None and record.address not in own_agents():
        return Surveyed(record.addresses, record, problem=foreign, stale=stale)
    problems: list[FlowEdgeError] = []
    for address in record.addresses:
        try:
            answer = ask(address, record.name)
        except FlowEdgeError as error:
            problems.append(error)
            continue
        if answer.device.id == record.id:
            others = tuple(other for other in record.addresses if other != address)
            return Surveyed((address, *others), record, answer, stale=stale)
        problems.append(other_device(address, record, answer.device))
    return Surveyed(record.addresses, record, problem=str(problems[0]), stale=stale)


def other_device(address: str, record: AdvertisedDevice, device: Device) -> DeviceError:
    """An advertisement's address leads to someone else."""
    return DeviceError(
        record.name,
        f"advertises {address}, where {device.name} (id {device.id}) answers, not {record.id}",
    )


def _of_peer(peer: str, ask: Ask) -> Surveyed:
    try:
        resolved, answer = _resolved(peer), ask(peer, None)
    except FlowEdgeError as error:
        return Surveyed((peer,), problem=str(error))
    device = answer.device
    problem = mismatch(device.name, peer, device.protocol_version, device.version)
    return Surveyed((resolved,), answer=answer, problem=problem)


def _resolved(peer: str) -> str:
    """The address with its name looked up, so that it can be compared. DeviceLostError for an unknown one."""
    host, port = split_address(peer)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeviceLostError(peer, f"its name cannot be looked up: {error}") from error
    return join_address(str(found[0][4][0]), port)
