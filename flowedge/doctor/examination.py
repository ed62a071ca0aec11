"""Looks at this device and the agents around it: probes at the edge, judges for what they tell."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from flowedge.client.survey import Surveyed, survey
from flowedge.core.errors import DeviceError
from flowedge.discovery.discovery import discover
from flowedge.discovery.duplicates import duplicates
from flowedge.discovery.interfaces import InterfaceChoice, choose, local_interfaces
from flowedge.discovery.settings import DiscoverySettings
from flowedge.doctor.checks import agents, clocks, compute, links, memory, mtu, multicast, ports, versions
from flowedge.doctor.finding import Finding, in_order
from flowedge.doctor.peers import Agents
from flowedge.doctor.probes.compute_probe import try_libraries
from flowedge.doctor.probes.connection_probe import ConnectionAttempt, connect
from flowedge.doctor.probes.link_probe import measure_links
from flowedge.doctor.probes.mtu_probe import passing_size
from flowedge.doctor.probes.multicast_probe import hear
from flowedge.doctor.probes.system_probe import disk_facts, memory_facts, unit
from flowedge.storage.limits import CacheLimits

KINDS = tuple(
    kind
    for judge in (agents, multicast, ports, mtu, clocks, versions, links, memory, compute)
    for kind in judge.KINDS
)
_CONNECT_S = 3.0
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Examination:
    """What is looked at; times in seconds.

    Attributes:
        peers: agents to look at besides those that are found and those of the configuration.
        own_address: where this device's agent listens if it is not announced; None when that is not known.
        slow_bits_per_s: below it a link is slow; libraries: whether PyTorch and bitsandbytes are tried.
        rates: whether links are measured, for which two agents have to be idle for a second or two.
        cache_dir, cache_gib: of quantised weights, as an agent is told them.
        validity: of this device's certificate; None without one.
    """

    settings: DiscoverySettings
    peers: tuple[str, ...] = ()
    own_address: str | None = None
    discover_s: float = 2.0
    listen_s: float = 2.0
    slow_bits_per_s: float = links.SLOW_BITS_PER_S
    libraries: bool = True
    rates: bool = True
    cache_dir: str | None = None
    cache_gib: float | None = None
    validity: clocks.Validity | None = None
    device: str = field(default_factory=lambda: platform.node() or "this device")

    def run(self, say: OnStep) -> list[Finding]:
        """Everything that was found, the worst first; `say` is told what is looked at."""
        say("the interfaces of this device")
        choice = choose(local_interfaces(), self.settings.allow, self.settings.deny)
        findings = multicast.judge_interfaces(choice, self.settings, self.device)
        say("multicast")
        findings += multicast.judge_multicast(hear(choice.networked, self.listen_s), self.device)
        say("the agents around")
        found, problems = self._find(choice)
        findings += problems + self._judge_agents(found)
        say("the way to other devices")
        ways = {one.address: connect(one.address, _CONNECT_S) for one in found.others}
        findings += _judge_ways(found, ways, choice)
        if self.rates:
            say("links")
            measured, unreached = measure_links(found, {peer: way.local for peer, way in ways.items()})
            findings += links.judge_links(measured, self.slow_bits_per_s) + unreached
        say("this device")
        findings += self._judge_device(found)
        return in_order(findings)

    def _find(self, choice: InterfaceChoice) -> tuple[Agents, list[Finding]]:
        problems: list[Finding] = []
        try:
            records = asyncio.run(discover(self.discover_s, settings=self.settings))
        except DeviceError as error:
            records = []
            problems = [Finding(multicast.MULTICAST_BLOCKED, self.device, error.reason)]
        own = () if self.own_address is None else (self.own_address,)
        found = survey(records, tuple(dict.fromkeys((*own, *self.peers, *self.settings.peers))))
        every = [*choice.chosen, *(out.interface for out in choice.left_out)]
        return Agents.split(found, every), problems

    def _judge_agents(self, found: Agents) -> list[Finding]:
        everyone = [one for one in (*found.own, *found.others) if one.id]
        own = [one.answer.device.address for one in found.own if one.answer is not None]
        findings = agents.judge_agents(own, self.device)
        findings += versions.judge_versions(found.versions())
        findings += versions.judge_duplicates(duplicates(everyone))
        findings += clocks.judge_clocks(found.clocks())
        if self.validity is not None:
            now = datetime.now(timezone.utc)
            findings += clocks.judge_certificate(self.validity, now, self.device, found.clocks())
        networked = [(one.name, one.address) for one in found.answering]
        return findings + multicast.judge_arrival(networked, found.announced())

    def _judge_device(self, found: Agents) -> list[Finding]:
        findings = memory.judge_memory([memory_facts(self.device), *found.memories()])
        cache = CacheLimits.configured(self.cache_dir, self.cache_gib)
        findings += memory.judge_disk(disk_facts(cache.root, cache.max_bytes), self.device)
        findings += agents.judge_unit(unit(), self.device)
        if self.libraries:
            findings += compute.judge_compute(try_libraries(), self.device)
        return findings


def _judge_ways(
    found: Agents, ways: Mapping[str, ConnectionAttempt], choice: InterfaceChoice
) -> list[Finding]:
    reached = [
        ports.PortFacts(
            one.name,
            one.address,
            ways[one.address].reach,
            # One of another version is not asked, and has a finding of its own.
            answered=one.answer is not None or (one.record is not None and one.record.mismatch is not None),
            problem=one.problem or "",
        )
        for one in found.others
    ]
    measured = [_mtu_facts(one, ways[one.address], choice) for one in found.others]
    return ports.judge_ports(reached) + mtu.judge_mtu([facts for facts in measured if facts is not None])


def _mtu_facts(one: Surveyed, connection: ConnectionAttempt, choice: InterfaceChoice) -> mtu.MtuFacts | None:
    own = next((i.mtu for i in choice.networked if connection.local in i.ips), None)
    if own is None:
        return None
    return mtu.MtuFacts(one.name, own, connection.segment_mtu, passing_size(one.address, own))
