"""Asks agents what they are: agents that were found on the network, and agents named by address."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum

from flowedge.client.announced import (
    AT_ONCE,
    LIMIT_S,
    AnnouncedReply,
    ask_announced,
    errors_of_answer,
)
from flowedge.client.clock_offset import ClockOffset
from flowedge.client.device import Device
from flowedge.client.sync import Client
from flowedge.cluster.process import current, started_agents
from flowedge.core.errors import AccessError, DeviceLostError, FlowEdgeError, PeerRefusedError
from flowedge.discovery.advertised_device import AdvertisedDevice, mismatch
from flowedge.network.address import join_address, split_address

ANSWER_S = 3.0  # seconds that an agent may take for each answer
_EXCHANGES = 4  # the shortest round trip of these counts


@dataclass(frozen=True)
class AgentReply:
    """What an agent answered.

    Attributes:
        round_trip: seconds.
        wall: its wall clock against ours; None when it does not report a wall clock.
    """

    device: Device
    round_trip: float
    wall: ClockOffset | None


class Refusal(Enum):
    """Why no call between this device and an agent is possible."""

    BY_AGENT = "the agent does not accept the certificate of this device"
    BY_CALLER = "this device does not accept the certificate of the agent"
    FOREIGN = "the agent announces another cluster or none, so it is not asked"

    @classmethod
    def of(cls, error: FlowEdgeError) -> Refusal | None:
        """Return the refusal behind the error of a call; None for other errors."""
        if isinstance(error, PeerRefusedError):
            return cls.BY_CALLER
        return cls.BY_AGENT if isinstance(error, AccessError) else None


@dataclass(frozen=True)
class SurveyedAgent:
    """One agent, whether it answered or not.

    Attributes:
        addresses: all known addresses; the first is the address at which it answered.
        advertised: what it advertises; None for an agent that is only named.
        answer: None when `problem` says why there is no answer.
        problem: with an answer, that the agent runs another protocol version.
        refusal: None if `problem` is another one.
        stale: it was advertised, but was silent for longer than its announcement is valid.
    """

    addresses: tuple[str, ...]
    advertised: AdvertisedDevice | None = None
    answer: AgentReply | None = None
    problem: str | None = None
    stale: bool = False
    refusal: Refusal | None = None

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def id(self) -> str:
        return "" if self._source is None else self._source.id

    @property
    def name(self) -> str:
        return self.address if self._source is None else self._source.name

    @property
    def instance(self) -> str:
        return "" if self._source is None else self._source.instance

    @property
    def _source(self) -> Device | AdvertisedDevice | None:
        return self.advertised if self.answer is None else self.answer.device


Ask = Callable[[str, str | None], AgentReply]
"""Asks the agent at an address; the second argument is the name that its certificate must have, if any."""


def ask(address: str, name: str | None = None, answer_s: float = ANSWER_S) -> AgentReply:
    """Ask an agent what it is, and measure a few round trips."""
    with Client(address, silence_s=answer_s, name=name) as client:
        device = client.describe()
        exchanges = client.exchange_clocks(_EXCHANGES)
    round_trip = min(exchange.round_trip for exchange in exchanges)
    return AgentReply(device, round_trip, ClockOffset.of_walls(exchanges))


def survey(
    advertised: Sequence[AdvertisedDevice],
    peers: Sequence[str] = (),
    *,
    stale: Iterable[AdvertisedDevice] = (),
    known: Collection[str] = (),
    limit_s: float = LIMIT_S,
    ask: Ask = ask,
) -> list[SurveyedAgent]:
    """Ask all agents, many at a time; return each agent once, sorted by name.

    Named agents are asked beside the others; see `ask_announced` for the order of these.

    Args:
        peers: addresses of agents that need not be advertised.
        stale: the devices of `advertised` whose announcements are no longer valid.
        known: ids of devices that answered before.
        limit_s: seconds after which no further agent is asked.
    """
    old = frozenset(stale)
    not_asked = {device: _not_queried(device, device in old) for device in advertised}
    asked = [device for device, agent in not_asked.items() if agent is None]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        named = pool.map(lambda peer: _ask_peer(peer, ask), peers)
        replies = ask_announced(asked, ask, lambda reply: reply.device, known=known, limit_s=limit_s)
        found = [
            not_asked[device] or _announced(device, replies[device], device in old) for device in advertised
        ]
        agents = [*found, *named]
    return sorted(merge(agents), key=lambda agent: (agent.name, agent.id, agent.address))


def merge(agents: Iterable[SurveyedAgent]) -> list[SurveyedAgent]:
    """Return each agent once, with all of its addresses.

    An agent that does not answer is left out when an agent of the same id answers, since that is its next
    start, and when it is only named and another agent is advertised at its address.
    """
    merged: dict[tuple[str, ...], SurveyedAgent] = {}
    for agent in agents:
        key = (agent.id, agent.instance) if agent.instance else (agent.id, agent.address)
        known = merged.get(key)
        if known is None:
            merged[key] = agent
        else:
            addresses = tuple(dict.fromkeys((*known.addresses, *agent.addresses)))
            merged[key] = replace(known, addresses=addresses, advertised=known.advertised or agent.advertised)
    answering = {agent.id for agent in merged.values() if agent.answer is not None}
    announced = {
        address for agent in merged.values() if agent.advertised is not None for address in agent.addresses
    }
    return [
        agent
        for agent in merged.values()
        if agent.answer is not None
        or not (agent.id in answering or (agent.advertised is None and agent.address in announced))
    ]


def _not_queried(device: AdvertisedDevice, stale: bool) -> SurveyedAgent | None:
    """Return an announced agent that is not asked, with the reason; None if it is to be asked."""
    if device.mismatch:
        return SurveyedAgent(device.addresses, device, problem=device.mismatch, stale=stale)
    try:
        foreign = current().foreign(device.name, device.cluster)
    except FlowEdgeError as error:
        foreign = str(error)
    if foreign is None or device.address in started_agents():
        return None
    return SurveyedAgent(device.addresses, device, problem=foreign, stale=stale, refusal=Refusal.FOREIGN)


def _announced(
    device: AdvertisedDevice, outcome: AnnouncedReply[AgentReply] | FlowEdgeError, stale: bool
) -> SurveyedAgent:
    """Return an announced agent that was asked."""
    if isinstance(outcome, FlowEdgeError):
        refusal = Refusal.of(outcome)
        return SurveyedAgent(device.addresses, device, problem=str(outcome), stale=stale, refusal=refusal)
    others = tuple(other for other in device.addresses if other != outcome.address)
    return SurveyedAgent((outcome.address, *others), device, outcome.reply, stale=stale)


def _ask_peer(peer: str, ask: Ask) -> SurveyedAgent:
    try:
        with errors_of_answer(peer):
            resolved, answer = _resolved(peer), ask(peer, None)
    except FlowEdgeError as error:
        return SurveyedAgent((peer,), problem=str(error), refusal=Refusal.of(error))
    device = answer.device
    problem = mismatch(device.name, peer, device.protocol_version, device.version)
    return SurveyedAgent((resolved,), answer=answer, problem=problem)


def _resolved(peer: str) -> str:
    """Return the address with its host name looked up, so that addresses can be compared.

    Raises:
        DeviceLostError: when the name is not known.
    """
    host, port = split_address(peer)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeviceLostError(peer, f"its name cannot be looked up: {error}") from error
    return join_address(str(found[0][4][0]), port)


@dataclass(frozen=True)
class Duplicate:
    """Several devices with the same id, or with the same name.

    Attributes:
        what: "id" or "name".
        value: the id or the name that the devices share.
        devices: "name (address)" of each, sorted.
    """

    what: str
    value: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.what} {self.value!r} is that of {' and of '.join(self.devices)}"


def duplicates(devices: Iterable[SurveyedAgent]) -> list[Duplicate]:
    """Return shared ids, then shared names; a name shared only by devices of one id is left out.

    Two entries with the same address count as one device.
    """
    by_address = {device.address: device for device in devices}
    found = _shared("id", by_address.values(), lambda device: device.id)
    one_an_id = {device.id: device for device in by_address.values()}
    return found + _shared("name", one_an_id.values(), lambda device: device.name)


def _shared(
    what: str, devices: Iterable[SurveyedAgent], key: Callable[[SurveyedAgent], str]
) -> list[Duplicate]:
    groups: dict[str, list[SurveyedAgent]] = defaultdict(list)
    for device in devices:
        groups[key(device)].append(device)
    return [
        Duplicate(what, value, tuple(sorted(f"{device.name} ({device.address})" for device in group)))
        for value, group in sorted(groups.items())
        if len(group) > 1
    ]
