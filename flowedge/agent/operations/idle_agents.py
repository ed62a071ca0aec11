"""Finds the idle agents of the network, whatever else is announced there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from flowedge.agent.operations.probe_history import Candidate, ProbeHistory
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.coordinator import describe
from flowedge.cluster.process import current
from flowedge.core.errors import FlowEdgeError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.discovery import discover
from flowedge.network.address import is_loopback
from flowedge.network.deadline import within
from flowedge.network.log_rate import LimitedLog
from flowedge.v1 import agent_pb2 as pb

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
