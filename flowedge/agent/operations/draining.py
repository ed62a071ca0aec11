"""The drain of an agent: nothing new is taken, and open sessions end, by an error if they take too long."""

from __future__ import annotations

import asyncio
import logging
import time

from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.agent.roles.role_holder import RoleHolder
from flowedge.core.errors import DrainingError
from flowedge.core.log_fields import about

POLL_S = 0.02

_log = logging.getLogger(__name__)


class Drain:
    """The drain of one device, from the signal on."""

    def __init__(self, device: str, roles: RoleHolder, drain_s: float, tell_s: float) -> None:
        """drain_s: seconds in which open sessions may end; tell_s: then, in which all peers are told."""
        self._device = device
        self._roles = roles
        self._drain_s = drain_s
        self._tell_s = tell_s

    def begin(self) -> None:
        """Refuse everything new."""
        self._roles.begin_drain(DrainingError(self._device, "it is draining and takes nothing new"))
        role = self._roles.role
        running = role.num_sessions if role is not None else 0
        fields = about(event="draining", sessions=running, seconds=self._drain_s)
        _log.info("the agent is draining: what runs has this long to end", extra=fields)

    async def wait(self, hurry: asyncio.Event) -> None:
        """Return when all sessions have ended; those that do not end in time end with a DrainingError.

        hurry: when it is set, the time is over.
        """
        role = self._roles.role
        if role is None or await _is_drained(role, self._drain_s, hurry):
            _log.info("the agent has drained", extra=about(event="drained"))
            return
        why = "told to stop at once" if hurry.is_set() else f"{self._drain_s:g} s were over"
        fields = about(event="handed_back", sessions=role.num_sessions, reason=why)
        _log.warning("what still runs is handed back", extra=fields)
        role.fail_sessions(DrainingError(self._device, "it is draining, and the session did not end in time"))
        if not await _is_drained(role, self._tell_s, asyncio.Event()):
            _log.warning("not all peers have taken note of what was handed back")


async def _is_drained(role: PipelineRole, seconds: float, hurry: asyncio.Event) -> bool:
    deadline = time.monotonic() + seconds
    while not role.is_drained:
        if hurry.is_set() or time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
