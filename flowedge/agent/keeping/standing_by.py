"""Devices that stand by: the standby of a draft node, seen from both ends, and the spares of a pipeline."""

from __future__ import annotations

import asyncio
import logging
import time

from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.other_agents import describe, have_stand_by, prepare
from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.network.deadline import within
from flowedge.v1 import agent_pb2 as pb

PROBE_S = 0.5  # between two questions to a draft node whether it is there
ANSWER_S = 1.0
PREPARE_S = 5.0  # between two times that spares are to be ready; one may have been started again
MOST_PREPARED = 2  # spares: each holds some hundred MB of libraries then
NAME_S = 2.0  # between two times that a draft node names its standby, which may have been started again

_log = logging.getLogger(__name__)


class StandingBy:
    """Names the standby of the pipeline that the device leads, or looks whether to lead another one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._named_at = float("-inf")
        self._problem = ""

    async def run(self) -> None:
        """Do so again and again, until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(PROBE_S)

    async def leads_elsewhere(self, address: str) -> str:
        """Return the name of the standby at an address if it leads in place of this device, else ""."""
        answer = await self._describe(address)
        if answer is None or not answer.stage_addresses:
            return ""
        return answer.name if answer.standby == self._agent.info.address_for(address) else ""

    async def _look(self) -> None:
        agent = self._agent
        role, standby = agent.roles.role, agent.stands_by
        if standby is not None and not standby.due:
            answer = await self._describe(standby.address)
            if agent.stands_by is standby:
                agent.stands_by = standby.after(answer, time.monotonic())
        elif isinstance(role, DraftNodeRole) and role.ready and role.request.standby and self._is_due:
            self._named_at = time.monotonic()
            self._say(role, await self._name(role))

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._named_at > NAME_S

    async def _name(self, role: DraftNodeRole) -> str:
        """Have the standby stand by; return why it does not, "" if it does."""
        address, link = role.request.standby, self._agent.config.link
        request = pb.StandByRequest(
            role=role.request, origin=role.origin, owner=role.owner or "", instance=self._agent.info.instance
        )
        try:
            request.role.pipeline = role.label  # the id is a secret of its devices
            request.role.standby = self._agent.info.address_for(address)
            await within(ANSWER_S, have_stand_by(address, request, link), f"{address} did not answer")
        except (FlowEdgeError, OSError) as error:
            return f"standby {address}: {error}"
        return ""

    def _say(self, role: DraftNodeRole, problem: str) -> None:
        role.standby_problem = problem
        if problem and problem != self._problem:
            fields = about(event="standby_missing", pipeline=role.label, reason=problem)
            _log.warning("the pipeline has no standby: %s", problem, extra=fields)
        self._problem = problem

    async def _describe(self, address: str) -> pb.Device | None:
        try:
            asking = describe(address, self._agent.config.link)
            return await within(ANSWER_S, asking, f"{address} did not answer")
        except FlowEdgeError:
            return None


async def prepare_spares(agent: Agent) -> None:
    """Have the spares and the standby of the pipeline that it leads get ready, until cancelled.

    They import libraries. The spares fetch the weights that they lack of all stages, once for a pipeline and
    not while it answers, since both need the network.
    """
    asked: set[tuple[str, str]] = set()  # pipelines and spares that are fetching
    while True:
        role, wanted = agent.roles.role, agent.config.pipeline
        if isinstance(role, DraftNodeRole) and role.ready:
            spares = [each for each in wanted.spares if each not in role.request.stages][:MOST_PREPARED]
            for place, spare in enumerate(spares):
                fetches = (role.pipeline, spare) not in asked and not role.load().sessions
                if await _prepare(agent, spare, role if fetches else None, place) and fetches:
                    asked = {each for each in asked if each[0] == role.pipeline} | {(role.pipeline, spare)}
            if role.request.standby and role.request.standby not in spares:
                await _prepare(agent, role.request.standby)
        await asyncio.sleep(PREPARE_S)


async def _prepare(agent: Agent, address: str, role: DraftNodeRole | None = None, place: int = 0) -> bool:
    """Have an agent get ready; return whether it has heard of it.

    Args:
        role: of the pipeline whose weights it fetches; None for none.
        place: of the stage that it begins with, so that several spares have different ones first.
    """
    try:
        stages = [] if role is None else await role.stages_for(address)
        first = place % len(stages) if stages else 0
        await prepare(address, agent.config.link, [*stages[first:], *stages[:first]])
    except FlowEdgeError as error:  # the pipeline is whole without it
        _log.debug("the spare %s is not prepared: %s", address, error)
        return False
    return True
