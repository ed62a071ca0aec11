"""Examines this device and the agents around it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from flowedge.client.survey import duplicates, survey
from flowedge.core.errors import DeviceError
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.discovery.discovery import discover
from flowedge.discovery.interfaces import InterfaceChoice, choose, local_interfaces
from flowedge.discovery.settings import DiscoverySettings
from flowedge.doctor import (
    agents,
    board,
    clocks,
    compute,
    links,
    membership,
    memory,
    mtu,
    multicast,
    ports,
    versions,
)
from flowedge.doctor.finding import Finding, in_order
from flowedge.doctor.hardware import judge_hardware
from flowedge.doctor.known_agents import KnownAgents
from flowedge.network.address import is_address

KINDS = tuple(
    kind
    for subject in (
        agents,
        membership,
        multicast,
        ports,
        mtu,
        clocks,
        versions,
        links,
        memory,
        board,
        compute,
    )
    for kind in subject.KINDS
)
_CONNECT_S = 3.0
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Examination:
    """What is examined; times in seconds.

    Attributes:
        peers: agents to examine beside those that are found and those of the configuration.
        address_here: where this device's agent listens even if it is not announced; None if not known.
        slow_bits_per_s: a link below this rate is slow.
        libraries: whether PyTorch and bitsandbytes are tried.
        rates: whether links are measured, which keeps two agents from other work for a second or two.
        cache_dir, cache_gib: the weight cache, as in the agent's configuration.
        certificates: of this device and its user; none if no cluster was joined.
        damaged: why other identities of theirs cannot be used.
        revoked: the revocation list of this device.
    """

    settings: DiscoverySettings
    peers: tuple[str, ...] = ()
    our_address: str | None = None
    discover_s: float = 2.0
    listen_s: float = 2.0
    slow_bits_per_s: float = links.SLOW_BITS_PER_S
    libraries: bool = True
    rates: bool = True
    cache_dir: str | None = None
    cache_gib: float | None = None
    certificates: tuple[membership.HeldCertificate, ...] = ()
    damaged: tuple[str, ...] = ()
    revoked: membership.ListFacts = field(default_factory=membership.ListFacts)
    device: str = field(default_factory=lambda: platform.node() or "this device")

    def run(self, report: OnStep) -> list[Finding]:
        """Return all findings, the worst first; `report` is called with what is examined next."""
        report("the interfaces of this device")
        choice = choose(local_interfaces(), self.settings.allow, self.settings.deny)
        findings = multicast.judge_interfaces(choice, self.settings, self.device)
        report("multicast")
        findings += multicast.judge_multicast(multicast.hear(choice.networked, self.listen_s), self.device)
        report("the agents on the network")
        known, problems = self._find(choice)
        findings += problems + self._judge_agents(known)
        report("the routes to other devices")
        attempts = {agent.address: ports.connect(agent.address, _CONNECT_S) for agent in known.others}
        findings += _judge_routes(known, attempts, choice)
        if self.rates:
            report("links")
            local = {address: attempt.local for address, attempt in attempts.items()}
            measured, unreached = links.measure_links(known, local)
            findings += links.judge_links(measured, self.slow_bits_per_s) + unreached
        report("this device")
        findings += self._judge_device(known)
        return in_order(findings)

    @property
    def _serves(self) -> bool:
        """Whether an agent is expected on this device: not if its user alone has joined."""
        return not self.certificates or any(own.serves for own in self.certificates)

    def _find(self, choice: InterfaceChoice) -> tuple[KnownAgents, list[Finding]]:
        problems: list[Finding] = []
        try:
            advertised = asyncio.run(discover(self.discover_s, settings=self.settings))
        except DeviceError as error:
            advertised = []
            problems = [Finding(multicast.MULTICAST_BLOCKED, self.device, error.reason)]
        own = () if self.our_address is None else (self.our_address,)
        found = survey(advertised, tuple(dict.fromkeys((*own, *self.peers, *self.settings.peers))))
        interfaces = [*choice.chosen, *(out.interface for out in choice.left_out)]
        return KnownAgents.split(found, interfaces), problems

    def _judge_agents(self, known: KnownAgents) -> list[Finding]:
        identified = [agent for agent in (*known.own, *known.others) if agent.id]
        said = [agent.answer.device.address for agent in known.own if agent.answer is not None]
        own = [address for address in said if is_address(address)]
        joined, refused = bool(self.certificates), any(agent.refusal is not None for agent in known.own)
        findings = agents.judge_agents(own, self.device, joined=joined, refused=refused, serves=self._serves)
        findings += membership.judge_membership(self.certificates, known.refusals(), self.device)
        findings += membership.judge_damaged(self.damaged, self.device)
        findings += membership.judge_lists(self.revoked, known.list_numbers(), self.device)
        findings += versions.judge_versions(known.versions())
        findings += versions.judge_duplicates(duplicates(identified))
        findings += clocks.judge_clocks(known.clocks())
        findings += compute.judge_choices(known.unused_gpus())
        findings += board.judge_slowed(known.slowed())
        findings += agents.judge_pipelines(known.not_ready())
        for own_certificate in self.certificates:
            now, validity = datetime.now(timezone.utc), own_certificate.validity
            findings += clocks.judge_certificate(validity, now, self.device, known.clocks())
        networked = [(agent.name, agent.address) for agent in known.answering]
        return findings + multicast.judge_arrival(networked, known.announced())

    def _judge_device(self, known: KnownAgents) -> list[Finding]:
        findings = memory.judge_memory([memory.memory_facts(self.device), *known.memories()])
        cache = CacheLimits.configured(self.cache_dir, self.cache_gib)
        findings += memory.judge_disk(memory.disk_facts(cache.root, cache.max_bytes), self.device)
        findings += agents.judge_unit(agents.read_unit(), self.device, serves=self._serves)
        return findings + judge_hardware(self.device, libraries=self.libraries)


def _judge_routes(
    known: KnownAgents, attempts: Mapping[str, ports.ConnectionAttempt], choice: InterfaceChoice
) -> list[Finding]:
    tried, sizes = [], []
    for agent in known.others:
        attempt, advertised = attempts[agent.address], agent.advertised
        # Agents of other versions, and agents that refuse or are refused, have a finding of their own.
        other = advertised is not None and advertised.mismatch is not None
        answered = agent.answer is not None or agent.refusal is not None or other
        problem = agent.problem or ""
        tried.append(
            ports.PortFacts(agent.name, agent.address, attempt.result, answered, problem, attempt.silent)
        )
        own = next((i.mtu for i in choice.networked if attempt.local in i.ips), None)
        if own is not None:
            passes = mtu.passing_size(agent.address, own)
            sizes.append(mtu.MtuFacts(agent.name, own, attempt.segment_mtu, passes))
    return ports.judge_ports(tried) + mtu.judge_mtu(sizes)
