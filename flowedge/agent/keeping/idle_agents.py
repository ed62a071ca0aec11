"""Finds the idle agents of the network, asking first those that answered before."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.other_agents import describe
from flowedge.cluster.process import current
from flowedge.core.errors import FlowEdgeError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.network.address import is_loopback
from flowedge.network.deadline import within
from flowedge.network.log_rate import LimitedLog
from flowedge.v1 import agent_pb2 as pb

FIRST_PAUSE_S, MOST_PAUSE_S = 10.0, 600.0  # before an agent that did not answer is asked again
MOST_NEW = 64  # agents that never answered, asked in one round
MOST_GOOD, MOST_BAD = 256, 4096  # agents that are remembered
_MOST_DOUBLINGS = 16  # of the pause; an agent may fail for weeks, and no float holds 2 ** 1024
_GIVE_UP = 5  # failures in succession after which an agent is no longer known to answer


@dataclass(frozen=True)
class Candidate:
    """An agent that may be idle.

    Attributes:
        id: of the device; empty for an agent that only the configuration names.
    """

    id: str
    address: str
    name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.id, self.address


@dataclass(frozen=True)
class _FailedProbes:
    count: int
    until: float  # when it may be asked again


class ProbeHistory:
    """Remembers agents that answered, and for a growing time the announcements without an agent behind.

    Anybody on the network can announce any number of agents. So agents that have answered once are asked
    first and always, and of the others a limited number in each round: those with the fewest failures first.
    """

    def __init__(self, shuffle: random.Random | None = None) -> None:
        """shuffle: decides the order of equals, which nobody else may foresee."""
        self._good: dict[tuple[str, str], tuple[Candidate, int]] = {}  # with failures since the last answer
        self._bad: dict[tuple[str, str], _FailedProbes] = {}
        self._shuffle = shuffle or random.SystemRandom()

    def known(self) -> list[Candidate]:
        """Return the agents that have answered, whether they are announced at present or not."""
        return [candidate for candidate, _ in self._good.values()]

    def newcomers(self, announced: Sequence[Candidate], now: float) -> list[Candidate]:
        """Return announced agents that have never answered, at most MOST_NEW, the most promising first."""
        due = [
            candidate
            for candidate in {each.key: each for each in announced}.values()
            if candidate.key not in self._good and self._failures(candidate).until <= now
        ]
        self._shuffle.shuffle(due)
        return sorted(due, key=lambda candidate: self._failures(candidate).count)[:MOST_NEW]

    def answered(self, candidate: Candidate) -> None:
        """Take in that an agent answered as the device that was announced."""
        self._bad.pop(candidate.key, None)
        self._good.pop(candidate.key, None)
        self._good[candidate.key] = candidate, 0
        while len(self._good) > MOST_GOOD:
            del self._good[next(iter(self._good))]

    def failed(self, candidate: Candidate, now: float) -> None:
        """Take in that no agent, or another agent, answered."""
        if candidate.key in self._good:
            _, failures = self._good[candidate.key]
            if failures + 1 < _GIVE_UP:
                self._good[candidate.key] = candidate, failures + 1
                return
            del self._good[candidate.key]
        count = self._failures(candidate).count + 1
        pause = min(FIRST_PAUSE_S * 2 ** min(count - 1, _MOST_DOUBLINGS), MOST_PAUSE_S)
        self._bad.pop(candidate.key, None)
        self._bad[candidate.key] = _FailedProbes(count, now + pause)
        while len(self._bad) > MOST_BAD:
            del self._bad[next(iter(self._bad))]

    def _failures(self, candidate: Candidate) -> _FailedProbes:
        return self._bad.get(candidate.key, _FailedProbes(0, float("-inf")))


DISCOVER_S = 3.0
ANSWER_S = 5.0  # for one agent to answer
ROUNDS = 4  # of newcomers that are asked for one pipeline
AT_ONCE = 32  # agents that are asked at the same time
_ADDRESSES = 3  # of one device

_log = logging.getLogger(__name__)


class IdleAgents:
    """Asks announced agents what they are, many at a time, and remembers the outcomes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._history = ProbeHistory()
        self._left_out = LimitedLog(_log, "agent_left_out", level=logging.INFO)
        self._put_off = LimitedLog(_log, "agents_put_off", level=logging.INFO)

    @property
    def known_addresses(self) -> list[str]:
        """The addresses of agents that the settings name or that have answered before."""
        known = [candidate.address for candidate in self._history.known()]
        return list(dict.fromkeys((*self._agent.config.discovery.peers, *known)))

    async def are_idle(self, addresses: Sequence[str]) -> bool:
        """Return whether agents without a role answer at all of these addresses."""
        idle = await self._ask(Candidate("", address) for address in addresses)
        return len(idle) == len(addresses)

    async def find(self, wanted: int) -> list[tuple[str, str]]:
        """Return name and address of idle agents that answer.

        Agents of the configuration and agents that answered before are asked first. Others are asked only if
        these are too few: a limited number in a limited number of rounds, so that the time is bounded.

        Args:
            wanted: the number of agents that is enough; 0 for as many as there are.

        Raises:
            DeviceError: when there is no interface to search on, or the network refuses.
        """
        records = await discover(DISCOVER_S, settings=self._agent.config.discovery)
        peers = [Candidate("", peer) for peer in self._agent.config.discovery.peers]
        first = {candidate.key: candidate for candidate in (*peers, *self._history.known())}
        idle = await self._ask(first.values())
        announced = [candidate for record in records for candidate in self._candidates(record)]
        for _ in range(ROUNDS):
            chosen = self._history.newcomers(announced, time.monotonic())
            if not chosen or 0 < wanted <= len(idle):
                break
            if len(announced) > len(chosen) + len(first):
                self._put_off.add(f"{len(chosen)} of {len(announced)} announced agents are asked")
            idle |= await self._ask(chosen)
        return list(idle.values())

    def _candidates(self, record: AdvertisedDevice) -> Sequence[Candidate]:
        if record.id == self._agent.info.id or record.mismatch or is_loopback(record.address):
            return ()
        if current().foreign(record.name, record.cluster) is not None:
            return ()
        return [Candidate(record.id, address, record.name) for address in record.addresses[:_ADDRESSES]]

    async def _ask(self, candidates: Iterable[Candidate]) -> dict[str, tuple[str, str]]:
        """Return name and address of the candidates that are idle, by their ids."""
        slots = asyncio.Semaphore(AT_ONCE)
        asked = list(candidates)
        devices = await asyncio.gather(*(self._describe(candidate, slots) for candidate in asked))
        return {
            device.id: (device.name, candidate.address)
            for candidate, device in reversed([*zip(asked, devices, strict=True)])
            if device is not None and not device.role and device.id != self._agent.info.id
        }

    async def _describe(self, candidate: Candidate, slots: asyncio.Semaphore) -> pb.Device | None:
        """Return what the agent says of itself; None if it is not the announced agent."""
        async with slots:
            try:
                asking = describe(candidate.address, self._agent.config.link)
                device = await within(ANSWER_S, asking, f"{candidate.address} did not answer")
            except FlowEdgeError as error:
                self._leave_out(candidate, str(error))
                return None
            except Exception as error:  # noqa: BLE001 (an answer nobody foresaw must not hide other agents)
                self._leave_out(candidate, "its answer cannot be read", error)
                return None
        if candidate.id not in ("", device.id):
            self._leave_out(candidate, f"{device.name} (id {device.id}) answers, not {candidate.id}")
            return None
        self._history.answered(Candidate(candidate.id, candidate.address, device.name))
        return device

    def _leave_out(self, candidate: Candidate, reason: str, error: Exception | None = None) -> None:
        self._history.failed(candidate, time.monotonic())
        shown = f"{candidate.name} ({candidate.address})" if candidate.name else candidate.address
        self._left_out.add(f"{shown} is left out of the pipeline: {reason}", error=error)
