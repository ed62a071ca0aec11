"""What is known of each agent, and facts for the judges that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowedge.client.survey import Surveyed
from flowedge.discovery.interfaces import Interface
from flowedge.doctor.checks.clocks import ClockFacts
from flowedge.doctor.checks.memory import MemoryFacts
from flowedge.doctor.checks.versions import VersionFacts
from flowedge.net.address import is_loopback, split_address


@dataclass(frozen=True)
class Agents:
    """The agents of this device, and the others."""

    own: tuple[Surveyed, ...]
    others: tuple[Surveyed, ...]

    @classmethod
    def split(cls, found: Iterable[Surveyed], interfaces: Sequence[Interface]) -> Agents:
        """By whether an address of theirs is one of this device's interfaces."""
        ips = {ip for interface in interfaces for ip in interface.ips}
        own: list[Surveyed] = []
        others: list[Surveyed] = []
        for one in found:
            hosts = {split_address(address)[0] for address in one.addresses[:1]}
            (own if hosts & ips or is_loopback(one.address) else others).append(one)
        return cls(tuple(own), tuple(others))

    @property
    def answering(self) -> tuple[Surveyed, ...]:
        """The others that answer."""
        return tuple(one for one in self.others if one.answer is not None)

    @property
    def measurer(self) -> Surveyed | None:
        """The agent of this device that others can reach, which measures its links."""
        reachable = [one for one in self.own if one.answer is not None and not is_loopback(one.address)]
        return reachable[0] if reachable else None

    def versions(self) -> list[VersionFacts]:
        """Of all that say."""
        facts = []
        for one in (*self.own, *self.others):
            said = one.record if one.answer is None else one.answer.device
            if said is not None:
                facts.append(VersionFacts(one.name, said.protocol_version, said.version))
        return facts

    def clocks(self) -> list[ClockFacts]:
        """Of the others that say."""
        return [
            ClockFacts(one.name, one.answer.wall.offset, one.answer.wall.uncertainty)
            for one in self.answering
            if one.answer is not None and one.answer.wall is not None
        ]

    def memories(self) -> list[MemoryFacts]:
        """Of the others that answer."""
        return [
            MemoryFacts(one.name, one.answer.device.memory_total, one.answer.device.memory_available)
            for one in self.answering
            if one.answer is not None
        ]

    def announced(self) -> frozenset[str]:
        """The addresses of announcements."""
        return frozenset(
            address for one in self.others if one.record is not None for address in one.addresses
        )
