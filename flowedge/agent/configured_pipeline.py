"""Assembles the pipeline of the configuration, and again whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from flowedge.agent.idle_agents import IdleAgents
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.cluster.process import current
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.ids import new_pipeline_id
from flowedge.network.supervision import supervise
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

Lead: TypeAlias = Callable[[pb.DraftNodeRole, ReportProgress], Awaitable[None]]
"""Takes the role of a draft node: AgentService.lead."""

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
    """Has the device take the role of the draft node whenever it is idle."""

    def __init__(self, agent: Agent, lead: Lead) -> None:
        self._agent = agent
        self._lead = lead
        self._idle_agents = IdleAgents(agent)
        self._said = ""

    async def run(self) -> None:
        """Check the role again and again, until cancelled."""
        while True:
            role = self._agent.roles.role
            if role is None or not role.in_use:  # a pipeline that somebody else gave it is left alone
                try:
                    await self._assemble()
                    self._agent.obstacle = ""
                except FlowEdgeError as error:  # which is in the log
                    self._agent.obstacle = str(error)
            await asyncio.sleep(self._agent.config.pipeline.look_s)

    async def _assemble(self) -> None:
        wanted = self._agent.config.pipeline
        try:
            current().check_leads()
            stages = list(wanted.stages) or choose_stages(
                await self._idle_agents.find(wanted.stages_required), wanted.stages_required, self._agent.name
            )
        except FlowEdgeError as error:
            self._say(f"the pipeline has to wait: {error}")
            raise
        request = pb.DraftNodeRole(
            pipeline=new_pipeline_id(),
            stages=stages,
            protocol_version=PROTOCOL_VERSION,
            config=wanted.to_json(),
        )
        self._said = ""
        await self._lead(request, _report)

    def _say(self, what: str) -> None:
        """Log a text once, however often it is given in succession."""
        if what != self._said:
            self._said = what
            _log.info("%s", what)


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
