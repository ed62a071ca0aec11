"""The one role a device has at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from flowedge.core.errors import DeviceError, DrainingError
from flowedge.core.log_fields import about
from flowedge.live.timeline import Timeline
from flowedge.live.transport.server import StreamOwner
from flowedge.v1 import agent_pb2 as pb

_log = logging.getLogger(__name__)


class PipelineRole(Protocol):
    """A part in one pipeline, from the moment it is claimed, before anything is loaded."""

    pipeline: str

    @property
    def in_use(self) -> bool:
        """Whether the pipeline is being set up or alive, so that no other may take the device."""

    @property
    def ready(self) -> bool:
        """Whether it is loaded and its pipeline is whole."""

    @property
    def num_sessions(self) -> int:
        """Sessions that are open here."""

    @property
    def queue_length(self) -> int:
        """Segments that wait for the compute lane; 0 on a draft node."""

    @property
    def cache_budget(self) -> int:
        """Bytes that KV caches may take; 0 on a draft node, and before the role is loaded."""

    @property
    def is_drained(self) -> bool:
        """Whether nothing is under way that a stop would cut off, but loading."""

    def begin_drain(self, error: DrainingError) -> None:
        """Refuse what is new with an error; what is running goes on."""

    def fail_sessions(self, error: DrainingError) -> None:
        """End what is running with an error; `is_drained` when that has been told."""

    def streams(self) -> StreamOwner:
        """What takes the pipeline's streams; DeviceError while it is still being loaded."""

    def timeline(self) -> Timeline:
        """What the device did in this role; DeviceError while it is still being loaded."""

    def describe(self, device: pb.Device) -> None:
        """Fill in what the device does."""

    async def stop(self, reason: str) -> None:
        """Give the role up: end sessions and links, and let go of the model."""


class RoleHolder:
    """Gives the device's role to one pipeline at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._role: PipelineRole | None = None
        self._dropping: asyncio.Future[None] | None = None
        self._kept_for: str | None = None
        self._draining: DrainingError | None = None

    @property
    def role(self) -> PipelineRole | None:
        """The role now, None when idle."""
        return self._role

    @property
    def draining(self) -> bool:
        """Whether the device is being stopped."""
        return self._draining is not None

    def check_open(self) -> None:
        """DrainingError while the device is being stopped: it takes nothing new then."""
        if self._draining is not None:
            raise self._draining

    def begin_drain(self, error: DrainingError) -> None:
        """Refuse new roles, requests, sessions and measurements from now on, for good."""
        self._draining = error
        if self._role is not None:
            self._role.begin_drain(error)

    def streams_of(self, pipeline: str) -> StreamOwner:
        """What takes the streams of a pipeline. DeviceError when this device has no part in it."""
        if self._role is None or self._role.pipeline != pipeline:
            raise DeviceError(self._device, f"it has no part in pipeline {pipeline!r}")
        return self._role.streams()

    async def take(self, role: PipelineRole) -> None:
        """Give the device a new role; the one it has is stopped.

        DeviceError when that one's pipeline is another and alive, or the device is kept idle; DrainingError
        while it is being stopped.
        """
        self.check_open()
        if self._kept_for is not None:
            raise DeviceError(self._device, f"it is {self._kept_for}; try again when that is over")
        old = self._role
        if old is not None and old.in_use and old.pipeline != role.pipeline:
            raise DeviceError(
                self._device, f"it is part of pipeline {old.pipeline!r}, which is alive; release that first"
            )
        self._role = role
        if old is not None:
            await _stop(old, "the device was given another role")

    @contextmanager
    def kept_idle(self, purpose: str) -> Iterator[None]:
        """Keep roles off for something that they would disturb, and that would disturb them.

        purpose: what the device is doing, such as "being measured". DeviceError when it holds a role or is
        kept idle already; DrainingError while it is being stopped.
        """
        self.check_open()
        if self._role is not None:
            raise DeviceError(
                self._device,
                f"it is part of pipeline {self._role.pipeline!r}, which would disturb a measurement; "
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
        """Stop a role and be idle again, unless another role has been taken meanwhile."""
        if self._role is role:
            self._role = None
        await _stop(role, reason)

    def drop_soon(self, role: PipelineRole, reason: str) -> None:
        """The same for a role whose pipeline has ended, from inside it."""
        if self._role is role:
            self._dropping = asyncio.ensure_future(self.drop(role, reason))

    async def release(self, pipeline: str, reason: str = "the role was released") -> None:
        """Give up the role in a pipeline, in whichever there is with ""; nothing happens without one."""
        role = self._role
        if role is not None and pipeline in ("", role.pipeline):
            await self.drop(role, reason)


async def _stop(role: PipelineRole, reason: str) -> None:
    fields = about(event="role_released", pipeline=role.pipeline, reason=reason)
    _log.info("the role is given up", extra=fields)
    await role.stop(reason)
