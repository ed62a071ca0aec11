"""Whether the layers of a pipeline are moved: by what its stages take while it answers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from flowedge.agent.roles.agent import Agent
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.core.log_fields import about
from flowedge.core.pipeline_config import AUTO

if TYPE_CHECKING:
    from flowedge.planning.placement.drift import Move

_log = logging.getLogger(__name__)


class Rebalancing:
    """Proposes another division of the layers when it is clearly faster for a while."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._since: float | None = None  # when it was found to be faster, on time.monotonic()

    async def look(self, role: DraftNodeRole) -> Move | None:
        """Return what is to be moved now; None for nothing.

        That is when no answer runs, or at once with `rebalance` "auto", of the pipeline or of this agent.
        """
        agent, settings = self._agent, self._agent.config
        now, move = time.monotonic(), await self._found(role)
        if move is None:
            self._since, role.proposal = None, ""
            return None
        self._since = now if self._since is None else self._since
        if now - self._since < settings.deadlines.rebalance_s:
            return None
        if not role.proposal:
            names = {address: name for address, (name, _) in role.met.items()}
            role.proposal = move.words(names, agent.last_set_up_s)
            _log.warning("%s", role.proposal, extra=about(event="plan_proposed", pipeline=role.label))
        load = role.load()
        at_once = AUTO in (settings.pipeline.rebalance, role.config.rebalance)
        waits = not at_once and (load.sessions or load.waiting)
        return None if waits else move

    async def _found(self, role: DraftNodeRole) -> Move | None:
        division, work = self._agent.division, role.stage_work
        if division is None or not role.plan or self._agent.config.deadlines.rebalance_s == 0:
            return None
        if tuple(work) != division.stages or role.stage_layers != division.split:
            return None  # it was divided in another way
        side = await self._agent.compute_side()
        return side.move_for(division, work, role.verification)
