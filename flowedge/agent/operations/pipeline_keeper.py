"""Keeps the pipeline up that this device is configured to be the draft node of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.roles.coordinator import describe
from flowedge.agent.roles.reporting import ReportProgress
from flowedge.agent.roles.role import RoleHolder
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.drafting.choice import drafter_label
from flowedge.net.address import is_loopback
from flowedge.security.process import current
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

DISCOVER_S = 3.0

Lead: TypeAlias = Callable[[pb.DraftNodeRole, ReportProgress], Awaitable[None]]
"""Takes the role of a draft node; see AgentService.lead."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def kept_pipeline(
    identity: DeviceInfo, roles: RoleHolder, config: AgentConfig, lead: Lead
) -> AsyncIterator[None]:
    """While it is open, the pipeline of the configuration is assembled, and again whenever it is lost."""
    if not config.pipeline.model:
        yield
        return
    task = asyncio.create_task(PipelineKeeper(identity, roles, config, lead).run())
    task.add_done_callback(_tell_bug)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class PipelineKeeper:
    """Looks at the device's role, and has it take that of the draft node when it has none."""

    def __init__(self, identity: DeviceInfo, roles: RoleHolder, config: AgentConfig, lead: Lead) -> None:
        self._identity = identity
        self._roles = roles
        self._config = config
        self._lead = lead
        self._said = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            role = self._roles.role
            if role is None or not role.in_use:  # another pipeline that someone gave it is left alone
                with contextlib.suppress(FlowEdgeError):  # which is in the log
                    await self._assemble()
            await asyncio.sleep(self._config.pipeline.look_s)

    async def _assemble(self) -> None:
        wanted = self._config.pipeline
        try:
            current().check_leads()
            stages = list(wanted.stages) or choose_stages(
                await self._idle_agents(), wanted.stages_wanted, self._identity.name
            )
        except FlowEdgeError as error:
            self._say(f"the pipeline has to wait: {error}")
            raise
        request = pb.DraftNodeRole(
            pipeline=uuid.uuid4().hex,
            model=wanted.model,
            drafter=drafter_label(wanted.drafters),
            drafters=wanted.drafters,
            quant=wanted.quant,
            stages=stages,
            split=wanted.split,
            protocol_version=PROTOCOL_VERSION,
        )
        self._said = ""
        await self._lead(request, _report)

    async def _idle_agents(self) -> list[tuple[str, str]]:
        """Name and address of every idle agent on the network that answers."""
        from flowedge.discovery.discovery import discover  # noqa: PLC0415 (imports zeroconf)

        records = await discover(DISCOVER_S, settings=self._config.discovery)
        idle = []
        for record in records:
            if record.id == self._identity.id or record.mismatch or is_loopback(record.address):
                continue
            if current().foreign(record.name, record.cluster) is not None:
                continue
            try:
                device = await describe(record.address, self._config.link)
            except FlowEdgeError as error:
                _log.info("%s is left out of the pipeline: %s", record.name, error)
                continue
            if not device.role and device.id == record.id:
                idle.append((device.name, record.address))
        return idle

    def _say(self, what: str) -> None:
        """Once, however often it is so."""
        if what != self._said:
            self._said = what
            _log.info("%s", what)


def choose_stages(idle: Sequence[tuple[str, str]], wanted: int, device: str) -> list[str]:
    """The addresses of the first `wanted` idle agents by name, of all for 0. DeviceError for too few."""
    if len(idle) < max(wanted, 1):
        raise DeviceError(device, f"{max(wanted, 1)} idle agents are needed as stages, {len(idle)} are found")
    return [address for _, address in sorted(idle)][: wanted or None]


async def _report(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
    if transfer is None:  # of which there are many
        _log.info("%s: %s", device, text)


def _tell_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("the pipeline is no longer kept up", exc_info=task.exception())
