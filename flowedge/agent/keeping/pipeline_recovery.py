"""Sets a pipeline that has lost a device up again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from flowedge.agent.keeping.choice import stages_again
from flowedge.agent.keeping.device_probes import DeviceProbes
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.agent.roles.led_pipeline import LedPipeline
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.ids import new_pipeline_id, pipeline_label
from flowedge.core.log_fields import about
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb

Lead: TypeAlias = Callable[[pb.DraftNodeRole, ReportProgress, str | None], Awaitable[None]]
"""Takes the role of a draft node for a member, None for the device itself: AgentService.lead."""

LEFT_OUT_S = 2.0  # for which a device is left out with which the pipeline could not be set up
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 0.4

_log = logging.getLogger(__name__)


class PipelineRecovery:
    """Sets one pipeline up again, with the devices that are there."""

    def __init__(
        self,
        agent: Agent,
        lead: Lead,
        lost: LedPipeline,
        wanted: Sequence[str],
        spares: Sequence[str],
        probes: DeviceProbes,
    ) -> None:
        """
        lost: the lost pipeline; wanted, spares: as for `stages_again`; probes: of its devices.
        """
        self._agent = agent
        self._lead = lead
        self._lost = lost
        self._wanted = tuple(wanted)
        self._spares = tuple(spares)
        self._divided = bool(PipelineConfig.from_json(lost.request.config).split)
        self._left_out: dict[str, float] = {}  # by address, until when
        self._probes = probes
        self._failed = False  # whether a set-up has failed
        self._began = time.monotonic()

    async def run(self, seconds: float) -> bool:
        """Set the pipeline up; return whether it is.

        It ends without success after so many seconds, and when nobody wants the pipeline any more: it was
        released, or another one is asked for.
        """
        pause_s = FIRST_PAUSE_S
        while time.monotonic() < self._began + seconds and self._is_current:
            usable = await self._usable()
            # A device that was silent had that time to come back.
            waited_s = time.monotonic() - self._began + self._probes.silence_s
            own = self._probes.own
            others = [stage for stage in self._wanted if stage not in own]
            divided = self._divided and not own
            doubtful = set() if self._failed else self._probes.doubtful
            stages = stages_again(others, self._spares, usable, waited_s, divided=divided, doubtful=doubtful)
            if stages is not None and self._is_current and await self._set_up(stages):
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        return False

    @property
    def _is_current(self) -> bool:
        return self._agent.recovering == self._lost.origin

    async def _set_up(self, stages: Sequence[str]) -> bool:
        request = self._lost.with_stages(tuple(stages), new_pipeline_id())
        fields = about(event="pipeline_recovering", pipeline=pipeline_label(request.pipeline))
        _log.info("a lost pipeline is set up again with %s", ", ".join(stages), extra=fields)
        try:
            await self._lead(request, say, self._lost.owner)
        except FlowEdgeError as error:  # which is in the log
            self._failed, self._agent.obstacle = True, str(error)
            failed = error.device if isinstance(error, DeviceError) else ""
            address = self._probes.addresses.get(failed, failed)
            # An error that names no stage, such as too little memory for so few, is one of them all.
            for stage in [address] if address in stages else stages:
                self._left_out[stage] = time.monotonic() + LEFT_OUT_S
            return False
        self._agent.obstacle = ""
        role = self._agent.roles.role
        if not self._is_current:  # it was released while it was set up
            await self._agent.roles.release(request.pipeline, "nobody wants the pipeline any more")
            return False
        if role is not None and role.pipeline == request.pipeline:
            role.origin = self._lost.origin
        return True

    async def _usable(self) -> set[str]:
        """Return the addresses of the devices that answer and are not left out now."""
        now = time.monotonic()
        asked = [
            address
            for address in dict.fromkeys((*self._wanted, *self._spares))
            if self._left_out.get(address, 0.0) <= now
        ]
        return await self._probes.ask(asked, self._wanted)


async def say(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
    """Log the progress of a set-up, as a ReportProgress."""
    if transfer is None:  # reports of a transfer are too many for the log
        _log.info("%s: %s", device, text)
