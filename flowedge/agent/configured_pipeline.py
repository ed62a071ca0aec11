"""Assembles the pipeline of the configuration, and again whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from flowedge.agent.idle_agents import IdleAgents
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.cluster.process import current
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.ids import new_pipeline_id
from flowedge.network.supervision import supervise
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

Lead: TypeAlias = Callable[[pb.DraftNodeRole, ReportProgress], Awaitable[None]]
"""Takes the role of a draft node: AgentService.lead."""

LOOKS_APART = 6  # between two searches for agents to take in, which send multicast packets for seconds
SETTLED_LOOKS = 2  # searches in which an agent is idle before it is taken in: it may come and go
PATIENT_LOOKS = 12  # for a moment without answers; then new requests wait until the running ones have ended
SOON_S = 600.0  # a pipeline that is lost so soon after agents were taken in is set up without them
FIRST_PUT_OFF_S, MOST_PUT_OFF_S = 30.0, 600.0
_MOST_DOUBLINGS = 8
_MOST_PUT_OFF = 256  # agents that are remembered

_log = logging.getLogger(__name__)


@asynccontextmanager
async def keep_pipeline(agent: Agent, lead: Lead) -> AsyncIterator[None]:
    """Keep the pipeline of the settings up as long as the context is open; do nothing if there is none."""
    if not agent.config.pipeline.model:
        yield
        return
    task = asyncio.create_task(supervise("the pipeline keeper", ConfiguredPipeline(agent, lead).run))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class ConfiguredPipeline:
    """Has the device take the role of the draft node whenever it is idle.

    A pipeline of all idle agents also takes in agents that become idle later, such as a board that was
    unplugged: once the agent was idle in SETTLED_LOOKS searches, when no answer runs.
    """

    def __init__(self, agent: Agent, lead: Lead) -> None:
        self._agent = agent
        self._lead = lead
        self._idle_agents = IdleAgents(agent)
        self._put_off = PutOff()
        self._said = ""
        self._pipeline = ""  # the id of the last one
        self._looks = 0  # since the last search for agents to take in
        self._idle: dict[str, int] = {}  # for how many searches each address has been idle
        self._held = 0  # looks for which agents wait to be taken in
        self._newest: list[str] = []  # addresses that were taken in the last time
        self._taken_in = 0.0  # when, on time.monotonic()

    async def run(self) -> None:
        """Check the role again and again, until cancelled."""
        while True:
            role = self._agent.roles.role
            if role is None or not role.in_use:  # a pipeline that somebody else gave it is left alone
                await self._try_assemble()
            elif self._grows and role.pipeline == self._pipeline and role.ready:
                await self._take_in(role)
            await asyncio.sleep(self._agent.config.pipeline.look_s)

    @property
    def _grows(self) -> bool:
        """Whether the pipeline is to have all agents that are idle."""
        return not self._agent.config.pipeline.stages_required

    async def _try_assemble(self) -> None:
        self._looks, self._idle, self._held = 0, {}, 0
        if time.monotonic() - self._taken_in < SOON_S:  # the pipeline has not lasted with these
            for address in self._newest:
                self._put_off.failed(address, time.monotonic())
        self._newest = []
        try:
            await self._assemble()
            self._agent.obstacle = ""
        except FlowEdgeError as error:  # which is in the log
            self._agent.obstacle = str(error)

    async def _assemble(self) -> None:
        wanted = self._agent.config.pipeline
        stages, names = list(wanted.stages), dict[str, str]()
        try:
            current().check_leads()
            if not stages:
                idle = await self._idle_agents.find(wanted.stages_required)
                usable = self._put_off.left_of(idle, time.monotonic())
                if len(usable) < max(wanted.stages_required, 1):
                    usable = idle
                stages = choose_stages(usable, wanted.stages_required, self._agent.name)
                names = dict(idle)
        except FlowEdgeError as error:
            self._say(f"the pipeline has to wait: {error}")
            raise
        request = pb.DraftNodeRole(
            pipeline=new_pipeline_id(),
            stages=stages,
            protocol_version=PROTOCOL_VERSION,
            config=wanted.to_json(),
        )
        self._said, self._pipeline = "", request.pipeline
        try:
            await self._lead(request, _report)
        except DeviceError as error:
            self._put_off.failed(names.get(error.device, error.device), time.monotonic())
            raise

    async def _take_in(self, role: PipelineRole) -> None:
        """Set the pipeline up again with agents that have become idle, when no answer runs."""
        if not self._held:
            self._looks += 1
            if self._looks < LOOKS_APART:
                return
            self._looks = 0
            try:
                idle = await self._idle_agents.find(0)
            except FlowEdgeError as error:
                self._say(f"idle agents cannot be looked for: {error}")
                return
            idle = self._put_off.left_of(idle, time.monotonic())
            self._idle = {address: self._idle.get(address, 0) + 1 for _, address in idle}
            settled = [name for name, address in idle if self._idle[address] >= SETTLED_LOOKS]
            if not settled:
                return
            names = ", ".join(sorted(settled))
            self._say(f"{names}: idle, to be taken into the pipeline when no answer runs")
        self._held += 1
        load = role.load()
        if not load.sessions and not load.waiting:
            reason = "it is set up again with agents that have become idle"
            await self._agent.roles.release(role.pipeline, reason)
            taken = list(self._idle)
            await self._try_assemble()
            self._newest, self._taken_in = taken, time.monotonic()
        elif self._held == PATIENT_LOOKS and isinstance(role, DraftNodeRole):
            role.hold("answers that run end first, then it is set up again with agents that have become idle")

    def _say(self, what: str) -> None:
        """Log a text once, however often it is given in succession."""
        if what != self._said:
            self._said = what
            _log.info("%s", what)


class PutOff:
    """Agents with which a pipeline was not set up, or did not last. They are left out for a growing time."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many, and until when

    def failed(self, address: str, now: float) -> None:
        failures, until = self._failures.get(address, (0, 0.0))
        count = failures + 1 if now < until + SOON_S else 1
        pause = min(FIRST_PUT_OFF_S * 2 ** min(count - 1, _MOST_DOUBLINGS), MOST_PUT_OFF_S)
        self._failures[address] = count, now + pause
        while len(self._failures) > _MOST_PUT_OFF:
            del self._failures[next(iter(self._failures))]

    def left_of(self, idle: Sequence[tuple[str, str]], now: float) -> list[tuple[str, str]]:
        """Return the idle agents, each with name and address, that are not put off."""
        return [each for each in idle if self._failures.get(each[1], (0, 0.0))[1] <= now]


def choose_stages(idle: Sequence[tuple[str, str]], wanted: int, device: str) -> list[str]:
    """Return the addresses of the first `wanted` idle agents by name; of all agents if `wanted` is 0.

    Raises:
        DeviceError: when there are too few.
    """
    if len(idle) < max(wanted, 1):
        raise DeviceError(device, f"{max(wanted, 1)} idle agents are needed as stages, {len(idle)} are found")
    return [address for _, address in sorted(idle)][: wanted or None]


async def _report(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
    if transfer is None:  # reports of a transfer are too many for the log
        _log.info("%s: %s", device, text)
