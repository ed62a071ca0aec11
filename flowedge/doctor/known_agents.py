"""The agents that the doctor found, and the facts that follow from their answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowedge.client.survey import AgentReply, SurveyedAgent
from flowedge.discovery.interfaces import Interface
from flowedge.doctor.clocks import ClockFacts
from flowedge.doctor.membership import RefusalFacts
from flowedge.doctor.memory import MemoryFacts
from flowedge.doctor.versions import VersionFacts
from flowedge.network.address import is_loopback, split_address


@dataclass(frozen=True)
class KnownAgents:
    """The agents of this device, and the agents of other devices."""

    own: tuple[SurveyedAgent, ...]
    others: tuple[SurveyedAgent, ...]

    @classmethod
    def split(cls, found: Iterable[SurveyedAgent], interfaces: Sequence[Interface]) -> KnownAgents:
        """Sort agents by whether their address belongs to an interface of this device."""
        ips = {ip for interface in interfaces for ip in interface.ips}
        own: list[SurveyedAgent] = []
        others: list[SurveyedAgent] = []
        for agent in found:
            host, _ = split_address(agent.address)
            (own if host in ips or is_loopback(agent.address) else others).append(agent)
        return cls(tuple(own), tuple(others))

    @property
    def answering(self) -> tuple[SurveyedAgent, ...]:
        """The agents of other devices that answer."""
        return tuple(agent for agent in self.others if agent.answer is not None)

    @property
    def _answers(self) -> list[tuple[str, AgentReply]]:
        """The names of the agents of other devices that answer, with their answers."""
        return [(agent.name, agent.answer) for agent in self.others if agent.answer is not None]

    @property
    def measurer(self) -> SurveyedAgent | None:
        """The agent of this device that measures links: the first agent that other devices can reach."""
        reachable = [
            agent for agent in self.own if agent.answer is not None and not is_loopback(agent.address)
        ]
        return reachable[0] if reachable else None

    def versions(self) -> list[VersionFacts]:
        """Return the versions of all agents that report them."""
        facts = []
        for agent in (*self.own, *self.others):
            device = agent.advertised if agent.answer is None else agent.answer.device
            if device is not None:
                facts.append(VersionFacts(agent.name, device.protocol_version, device.version))
        return facts

    def clocks(self) -> list[ClockFacts]:
        """Return the wall clocks of other devices that report them."""
        return [
            ClockFacts(name, answer.wall.offset, answer.wall.uncertainty)
            for name, answer in self._answers
            if answer.wall is not None
        ]

    def memories(self) -> list[MemoryFacts]:
        """Return the memory of other devices that answer."""
        return [
            MemoryFacts(name, answer.device.memory_total, answer.device.memory_available)
            for name, answer in self._answers
        ]

    def list_numbers(self) -> list[tuple[str, int]]:
        """Return other devices that answer, each with the number of its revocation list."""
        return [(name, answer.device.revocation_number) for name, answer in self._answers]

    def unused_gpus(self) -> list[tuple[str, str]]:
        """Return other devices that answer, each with why its GPU is not used; "" where nothing is wrong."""
        return [(name, answer.device.compute.reason) for name, answer in self._answers]

    def slowed(self) -> list[tuple[str, str]]:
        """Return other devices that answer, each with what slows it down; "" where nothing does."""
        return [(name, answer.device.throttled) for name, answer in self._answers]

    def not_ready(self) -> list[tuple[str, str]]:
        """Return the draft nodes whose pipelines cannot answer, each with the reason."""
        answers = [(agent.name, agent.answer) for agent in (*self.own, *self.others)]
        found = [(name, answer.device.not_ready) for name, answer in answers if answer is not None]
        return [(name, reason) for name, reason in found if reason]

    def refusals(self) -> list[RefusalFacts]:
        """Return the agents with which no call is possible, because one side does not accept the other."""
        return [
            RefusalFacts(agent.name, agent.refusal, agent.problem or "", agent in self.own)
            for agent in (*self.own, *self.others)
            if agent.refusal is not None
        ]

    def announced(self) -> frozenset[str]:
        """Return the addresses of other devices that were announced."""
        return frozenset(
            address for agent in self.others if agent.advertised is not None for address in agent.addresses
        )
