"""Keeps pipelines up: assembles that of the configuration, and sets up again what has lost a device."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowedge.agent.keeping.choice import SOON_S, PutOff, RecentLosses, choose_stages
from flowedge.agent.keeping.device_probes import DeviceProbes
from flowedge.agent.keeping.idle_agents import IdleAgents
from flowedge.agent.keeping.pipeline_recovery import Lead, PipelineRecovery, say
from flowedge.agent.keeping.rebalancing import Rebalancing
from flowedge.agent.keeping.standing_by import StandingBy, prepare_spares
from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.led_pipeline import LedPipeline, Standby
from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.cluster.process import current
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.ids import new_pipeline_id
from flowedge.core.log_fields import about
from flowedge.network.supervision import supervise
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    from flowedge.planning.placement.drift import Move

TICK_S = 0.1  # between two looks at whether the pipeline has lost a device
LOOKS_APART = 6  # between two searches for agents to take in, which send multicast packets for seconds
SETTLED_LOOKS = 2  # searches in which an agent is idle before it is taken in: it may come and go
PATIENT_LOOKS = 12  # for a moment without answers; then new requests wait until the running ones have ended

_log = logging.getLogger(__name__)


@asynccontextmanager
async def keep_pipeline(agent: Agent, lead: Lead) -> AsyncIterator[None]:
    """Keep pipelines up that the device leads, by its settings or by a call, while the context is open."""
    keeper = ConfiguredPipeline(agent, lead)
    tasks = [
        asyncio.create_task(supervise("the pipeline keeper", keeper.run)),
        asyncio.create_task(supervise("the standby", keeper.standing_by.run)),
        asyncio.create_task(supervise("the spares", lambda: prepare_spares(agent))),
    ]
    agent.keeps_up = True
    try:
        yield
    finally:
        agent.keeps_up = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class FirstRequest:
    """The stages of a pipeline as somebody asked for them, by the id that it was given first."""

    origin: str = ""
    stages: tuple[str, ...] = ()


class ConfiguredPipeline:
    """Has the device take the role of the draft node whenever it is idle, if its settings have a pipeline.

    A pipeline that loses a device is set up again at once, with the devices that are there (see
    `stages_again`), also one that somebody else gave the device; its answers go on then. It has the stages
    that were asked for again when they are back. So is the pipeline of a draft node that is lost set up, if
    the device stands by for it.

    A pipeline of all idle agents also takes in agents that become idle later, such as a board that was
    unplugged: once the agent was idle in SETTLED_LOOKS searches, when no answer runs.
    """

    def __init__(self, agent: Agent, lead: Lead) -> None:
        self._agent = agent
        self.standing_by = StandingBy(agent)
        self._lead = lead
        self._idle_agents = IdleAgents(agent)
        self._put_off = PutOff()
        self._losses = RecentLosses(agent.config.deadlines.flapping_s)
        self._said = ""
        self._pipeline = ""  # the id of the last one
        self._first_request = FirstRequest()  # of somebody else, for the last pipeline that lost a device
        self._looks = 0  # since the last search for agents to take in
        self._idle: dict[str, int] = {}  # for how many searches each address has been idle
        self._held = 0  # looks for which agents wait to be taken in
        self._rebalancing = Rebalancing(agent)
        self._slept = float("inf")  # seconds since the last look
        self._newest: list[str] = []  # addresses that were taken in the last time
        self._taken_in = 0.0  # when, on time.monotonic()

    async def run(self) -> None:
        """Check the role again and again, until cancelled."""
        while True:
            wanted = self._agent.config.pipeline
            role = self._agent.roles.role
            if isinstance(role, DraftNodeRole) and role.lost and self._agent.recovers:
                await self._recover(role)
            elif self._agent.stands_by is not None:
                await self._take_over(self._agent.stands_by)
            elif self._slept >= wanted.look_s:
                self._slept = 0.0
                await self._look(role)
            tick = min(TICK_S, wanted.look_s)
            await asyncio.sleep(tick)
            self._slept += tick

    async def _look(self, role: PipelineRole | None) -> None:
        wanted = self._agent.config.pipeline
        if isinstance(role, DraftNodeRole) and role.ready and self._agent.recovers:
            move = await self._rebalancing.look(role)
            if move is not None:
                await self._move_layers(role, move)
                return
        if isinstance(role, DraftNodeRole) and role.ready and role.origin == self._first_request.origin:
            await self._complete(role, self._first_request.stages, ())
        elif not wanted.model:
            return
        elif role is None or not role.in_use:  # a pipeline that somebody else gave it is left alone
            await self._try_assemble()
        elif role.pipeline == self._pipeline and role.ready:
            if not wanted.stages_required:
                await self._take_in(role, 1)
            elif isinstance(role, DraftNodeRole):
                await self._take_more(role)
                await self._complete(role, wanted.stages, wanted.spares)

    async def _recover(self, role: DraftNodeRole) -> None:
        """Set a pipeline up again that has lost a device; give it up if that takes too long."""
        agent, wanted, request = self._agent, self._agent.config.pipeline, role.request
        own = role.pipeline == self._pipeline  # the one of the settings
        if not own and role.origin != self._first_request.origin:
            self._first_request = FirstRequest(role.origin, tuple(request.stages))
        first = () if own else self._first_request.stages
        stages = list(first or (own and wanted.stages) or request.stages)
        spares = list(wanted.spares) if own else []
        if own and not wanted.stages:
            spares += self._idle_agents.known_addresses
        probes = DeviceProbes(agent, role.loss, role.met, self._losses)
        done = await self._set_up_again(role.led, stages, spares, probes)
        for address in {probes.lost_address} if probes.flaps else probes.doubtful:
            self._put_off.failed(address, time.monotonic())
            fields = about(event="device_put_off", peer=address)
            _log.info("a device that may be lost again soon is not taken back for a while", extra=fields)
        if done and own and (now := agent.roles.role) is not None:
            self._pipeline = now.pipeline
        elif not done and agent.roles.role is role:
            await agent.roles.drop(role, "its pipeline was lost, and could not be set up again in time")

    async def _take_over(self, standby: Standby) -> None:
        """Lead the pipeline of a draft node that is lost."""
        if not standby.due:
            return
        fields = about(event="standby_leads", peer=standby.address)
        _log.warning(
            "the draft node at %s is lost, its standby leads the pipeline", standby.address, extra=fields
        )
        probes = DeviceProbes(self._agent, None, {}, self._losses)
        done = await self._set_up_again(standby.led, standby.led.request.stages, (), probes)
        if self._agent.stands_by is standby:
            self._agent.stands_by = None
        if done:
            self._pipeline = ""

    async def _set_up_again(
        self, led: LedPipeline, stages: Sequence[str], spares: Sequence[str], probes: DeviceProbes
    ) -> bool:
        agent = self._agent
        agent.recovering = led.origin
        try:
            recovery = PipelineRecovery(agent, self._lead, led, stages, spares, probes)
            return await recovery.run(agent.config.deadlines.recovery_s)
        finally:
            agent.recovering, agent.loss = "", None

    async def _take_more(self, role: DraftNodeRole) -> None:
        """Have as many stages as the settings count, where they name none."""
        wanted = self._agent.config.pipeline
        if not wanted.stages and len(role.request.stages) < wanted.count:
            await self._take_in(role, wanted.count - len(role.request.stages))

    async def _complete(self, role: DraftNodeRole, wanted: Sequence[str], spares: Sequence[str]) -> None:
        """Have the stages that were asked for in place of others, when they are there and no answer runs."""
        if not wanted or tuple(role.request.stages) == tuple(wanted):
            return
        self._looks += 1
        if self._looks < LOOKS_APART:
            return
        self._looks = 0
        missing = [stage for stage in wanted if stage not in role.request.stages]
        if any(self._put_off.is_put_off(stage, time.monotonic()) for stage in missing):
            return
        idle = await self._idle_agents.are_idle(missing)
        # Meanwhile a request may have come, or the pipeline may have been released.
        load = role.load()
        if idle and role is self._agent.roles.role and role.ready and not (load.sessions or load.waiting):
            await self._take_back(role, wanted, spares, missing)

    async def _take_back(
        self, role: DraftNodeRole, wanted: Sequence[str], spares: Sequence[str], missing: Sequence[str]
    ) -> None:
        """Set the pipeline up with the stages asked for again; with others if that does not work."""
        led = role.led
        if role.pipeline == self._pipeline:
            led = LedPipeline(self._request(wanted), role.origin, role.owner)
        if await self._set_up_anew(role, led, wanted, spares, "its stages are back"):
            now = self._agent.roles.role
            if isinstance(now, DraftNodeRole) and tuple(now.request.stages) != tuple(wanted):
                for stage in missing:
                    self._put_off.failed(stage, time.monotonic())

    async def _move_layers(self, role: DraftNodeRole, move: Move) -> None:
        """Set the pipeline up with other layers on its stages; answers that run go on then."""
        self._agent.division = move.division
        spares = self._agent.config.pipeline.spares if role.pipeline == self._pipeline else ()
        await self._set_up_anew(role, role.led, role.request.stages, spares, "its layers are moved")

    async def _set_up_anew(
        self,
        role: DraftNodeRole,
        led: LedPipeline,
        stages: Sequence[str],
        spares: Sequence[str],
        reason: str,
    ) -> bool:
        """Release a pipeline that is whole and set it up again; return whether it is."""
        agent, own, met = self._agent, role.pipeline == self._pipeline, role.met
        agent.recovering = role.origin  # so that a release by its owner meanwhile is heard
        role.hand_over(reason)
        await agent.roles.release(role.pipeline, reason)
        if agent.recovering != role.origin:
            return False
        probes = DeviceProbes(agent, None, met, self._losses)
        done = await self._set_up_again(led, stages, spares, probes)
        if done and own:
            now = agent.roles.role
            self._pipeline = "" if now is None else now.pipeline
        return done

    async def _try_assemble(self) -> None:
        standby = self._agent.config.pipeline.standby
        if standby and (leader := await self.standing_by.leads_elsewhere(standby)):
            self._agent.obstacle = f"{leader} leads it, as its standby"
            return
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
        request = self._request(stages)
        self._said, self._pipeline = "", request.pipeline
        try:
            await self._lead(request, say, None)
        except DeviceError as error:
            self._put_off.failed(names.get(error.device, error.device), time.monotonic())
            raise

    def _request(self, stages: Sequence[str]) -> pb.DraftNodeRole:
        """Return the request for the pipeline of the settings."""
        wanted = self._agent.config.pipeline
        return pb.DraftNodeRole(
            pipeline=new_pipeline_id(),
            stages=stages,
            protocol_version=PROTOCOL_VERSION,
            config=wanted.to_json(),
            standby=wanted.standby or "",
            chooses=not wanted.stages_required,
        )

    async def _take_in(self, role: PipelineRole, least: int) -> None:
        """Set the pipeline up again with agents that have become idle, when no answer runs.

        least: the number of such agents from which on.
        """
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
            left_out = role.left_out if isinstance(role, DraftNodeRole) else frozenset()
            usable = [each for each in idle if each[1] not in left_out]
            idle = self._put_off.left_of(usable, time.monotonic())
            self._idle = {address: self._idle.get(address, 0) + 1 for _, address in idle}
            settled = [name for name, address in idle if self._idle[address] >= SETTLED_LOOKS]
            if len(settled) < least:
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
