"""The one role a device has at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowedge.agent.roles.pipeline_role import PipelineRole
from flowedge.core.errors import AccessError, DeviceError, DeviceInUseError, DrainingError
from flowedge.core.log_fields import about
from flowedge.live.transport.server import StreamOwner

_log = logging.getLogger(__name__)


class RoleHolder:
    """Gives the device's role to one pipeline at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._role: PipelineRole | None = None
        self._dropping: asyncio.Future[None] | None = None
        self._kept_for: str | None = None
        self._draining: DrainingError | None = None
        self._drains_since = 0.0

    @property
    def role(self) -> PipelineRole | None:
        return self._role

    @property
    def draining(self) -> bool:
        """Whether the device is being stopped."""
        return self._draining is not None

    @property
    def drained_s(self) -> float:
        """Seconds since the device was told to stop; 0 if it was not."""
        return time.monotonic() - self._drains_since if self.draining else 0.0

    def check_open(self) -> None:
        """Raise a DrainingError if the device is being stopped: it takes nothing new then."""
        if self._draining is not None:
            raise self._draining

    def begin_drain(self, error: DrainingError) -> None:
        """Refuse new roles, requests, sessions and measurements from now on."""
        self._draining, self._drains_since = error, time.monotonic()
        if self._role is not None:
            self._role.begin_drain(error)

    def streams_of(self, pipeline: str, to_stage: bool) -> StreamOwner:
        """Return the owner of a pipeline's streams.

        to_stage: whether it is to be the stage, of a draft node that is a stage as well.

        Raises:
            DeviceError: when the device has no part in the pipeline, or is still loading.
        """
        role = self._role
        if role is not None and role.leads and to_stage:
            role = role.stage
        if role is None or role.pipeline != pipeline:
            raise DeviceError(self._device, "it is not part of that pipeline")
        return role.streams()

    def leads(self, pipeline: str) -> bool:
        """Return whether the device is the draft node of a pipeline, and may be a stage of it as well."""
        role = self._role
        return role is not None and role.leads and role.in_use and role.pipeline == pipeline

    async def take(self, role: PipelineRole) -> None:
        """Give the device a new role. The role that it has is stopped, unless the new one is its `stage`.

        Raises:
            AccessError: when that role is in use, and another member has given it.
            DeviceError: when the device is kept idle.
            DeviceInUseError: when that role is in use for another pipeline.
            DrainingError: while the device is being stopped.
        """
        self.check_open()
        if self._kept_for is not None:
            raise DeviceError(self._device, f"it is {self._kept_for}; try again when that is over")
        old = self._role
        if old is not None and not role.leads and self.leads(role.pipeline):
            before, old.stage = old.stage, role
            if before is not None:
                await _stop(before, "the device was given another role")
            return
        if old is not None and old.in_use:
            if old.pipeline != role.pipeline:
                raise DeviceInUseError(
                    self._device, f"it is part of pipeline {old.label}, which is alive; release that first"
                )
            if old.owner != role.owner:
                raise AccessError(f"device {self._device} has its role from another member")
        self._role = role
        if old is not None:
            await _stop(old, "the device was given another role")

    @contextmanager
    def refuse_roles(self, purpose: str) -> Iterator[None]:
        """Refuse roles as long as the context is open.

        Args:
            purpose: what the device is doing, such as "being measured".

        Raises:
            DeviceError: when the device holds a role, or is kept idle already.
            DrainingError: while the device is being stopped.
        """
        self.check_open()
        if self._role is not None:
            raise DeviceError(
                self._device,
                f"it is part of pipeline {self._role.label}, which would disturb a measurement; "
                "free it with flowedge release",
            )
        if self._kept_for is not None:
            raise DeviceError(self._device, f"it is {self._kept_for} already; try again when that is over")
        self._kept_for = purpose
        try:
            yield
        finally:
            self._kept_for = None

    async def drop(self, role: PipelineRole, reason: str) -> None:
        """Stop a role. The device is idle then, unless it has taken another role meanwhile."""
        if self._role is role:
            self._role = None
        elif self._role is not None and self._role.stage is role:
            self._role.stage = None
        await _stop(role, reason)

    def drop_soon(self, role: PipelineRole, reason: str) -> None:
        """Have a role stopped whose pipeline has ended; for a caller inside the role."""
        if self._role is role or (self._role is not None and self._role.stage is role):
            self._dropping = asyncio.ensure_future(self.drop(role, reason))

    async def release(
        self, pipeline: str, reason: str = "the role was released", *, giver: str | None = None
    ) -> None:
        """Give up the role in a pipeline, if the device has it; any role if `pipeline` is "".

        giver: the only member whose roles may be given up; None for all members.

        Raises:
            AccessError: when another member than `giver` has given the role, and it is in use.
        """
        role = self._role
        if role is None or pipeline not in ("", role.pipeline, role.origin):
            return
        if giver is not None and role.owner != giver and role.in_use:
            raise AccessError(
                f"device {self._device} has its role from another member, and only that member may release it"
            )
        await self.drop(role, reason)


async def _stop(role: PipelineRole, reason: str) -> None:
    fields = about(event="role_released", pipeline=role.label, reason=reason)
    _log.info("the role is given up", extra=fields)
    await role.stop(reason)
