"""One pipeline of the pool: asked again and again how it is, and set up again when its agents came back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from flowedge.client.aio import AsyncClient, AsyncGeneration
from flowedge.client.assembly import assemble_async
from flowedge.client.device import IDLE, Device
from flowedge.client.request import Recovery
from flowedge.client.transcript import Callbacks
from flowedge.core.errors import (
    AccessError,
    DeadlineError,
    DeviceError,
    DeviceInUseError,
    DeviceLostError,
    FlowEdgeError,
    PipelineNotReadyError,
    ProtocolError,
)
from flowedge.core.log_fields import about
from flowedge.gateway.config import PoolSettings
from flowedge.gateway.errors import ApiError
from flowedge.gateway.pipelines.opening import DeviceProgress
from flowedge.gateway.pipelines.served import PipelineEntry, name_of
from flowedge.network.deadline import set_within, within
from flowedge.v1 import generation_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

_FIRST_WAIT_S = 0.5
_NOT_ASKED = "it has not answered yet"

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class PipelineClient(AsyncClient):
    """A client of the draft node of a pipeline.

    Attributes:
        pipeline: name of the pipeline, for metrics.
        model: name of its model, as clients know it.
        request_bytes: most bytes of a request that the draft node takes; 0 where it does not tell.
        device: name of the draft node; "" before it has answered.
        on_loss: to be called when an answer has lost a device.
        others: returns clients of the other pipelines of the model that can answer.
    """

    pipeline: str = ""
    model: str = ""
    request_bytes: int = 0
    device: str = ""
    on_loss: Callable[[], None] = lambda: None
    others: Callable[[], Sequence[AsyncClient]] = lambda: ()

    def other_pipelines(self) -> Sequence[AsyncClient]:
        return self.others()

    def lost_device(self, lost: Recovery) -> str:
        """Return the name of a device that an answer has lost."""
        return self.device or lost.device if lost.device == self.address else lost.device

    def _start(self, request: pb.GenerateRequest, seconds: float, callbacks: Callbacks) -> AsyncGeneration:
        """Send a request.

        Raises:
            ApiError: with status 413, when it is larger than the draft node takes.
        """
        size = request.ByteSize()
        if self.request_bytes and size > self.request_bytes:
            raise ApiError(
                413,
                f"the prompt with its options has {size} bytes; the pipeline takes {self.request_bytes}; "
                "send less",
                code="request_too_large",
            )
        return super()._start(request, seconds, callbacks)


class PoolMember(AbstractAsyncContextManager["PoolMember"]):
    """A pipeline, watched while the context lasts.

    Attributes:
        leases: requests of this gateway that it answers or queues.
        problem: why it cannot answer; "" if it can.
        not_ready: whether that is because it is being set up.
        device: its draft node, as it answered last; None before.
        progress: what each device does while the pipeline is set up.
    """

    def __init__(
        self, entry: PipelineEntry, settings: PoolSettings, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """on_change: called when it can answer or cannot any more, and when the reason is another."""
        self._entry, self._settings, self._on_change = entry, settings, on_change
        self._lost_at: float | None = None  # when it could answer last, while it may soon be back by itself
        self.leases = 0
        self.problem = _NOT_ASKED
        self.not_ready = True
        self.device: Device | None = None
        self.progress = DeviceProgress()
        self.client = PipelineClient(
            entry.draft_node,
            name=entry.certificate or None,
            pipeline=entry.label,
            model=entry.model,
            recovery_s=settings.queue_s,
            pipeline_returns=entry.spec is not None,
            on_loss=self.ask_soon,
            alternatives=entry.other_leaders,
        )
        self._leases_when_asked = 0
        self._most_wait_s = settings.ask_s
        self._wait_s = _FIRST_WAIT_S
        self._next_at = time.monotonic()
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        return self._entry.label

    @property
    def address(self) -> str:
        return self._entry.draft_node

    @property
    def aliases(self) -> tuple[str, ...]:
        return self._entry.aliases

    @property
    def model(self) -> str:
        """Name of the model; "" if that is the draft node's to tell and it has not answered yet."""
        return self.client.model

    @property
    def ready(self) -> bool:
        return not self.problem

    @property
    def recovering(self) -> bool:
        """Whether it could answer a short while ago, and has lost a device since: requests wait for it."""
        return self._lost_at is not None and time.monotonic() - self._lost_at < self._settings.queue_s

    @property
    def context(self) -> int | None:
        """Most tokens of a prompt with its answer; None where the draft node does not tell."""
        return (self.device.context_tokens or None) if self.device is not None else None

    @property
    def next_query_s(self) -> float:
        """Seconds after which the pipeline is asked again."""
        return max(0.0, self._next_at - time.monotonic())

    @property
    def load(self) -> float:
        """Requests at the pipeline: this gateway's now, and others' when the pipeline was last described."""
        if self.device is None:
            return self.leases
        others = self.device.sessions + self.device.waiting - self._leases_when_asked
        return self.leases + max(others, 0)

    def gauges(self) -> dict[str, float]:
        """Return its gauges."""
        known = {"ready": float(self.ready), "running": self.leases}
        if self.device is None or not self.ready:
            return known
        return {**known, "sessions": self.device.sessions, "waiting": self.device.waiting}

    def failed(self, error: Exception) -> None:
        """Ask the pipeline how it is, because a request has failed.

        A pipeline that has lost a device is left out until it has answered. Any other error may be of the
        request alone.
        """
        if isinstance(error, DeviceLostError | PipelineNotReadyError | AccessError):
            self._fail(error)
        self.ask_soon()

    def ask_soon(self) -> None:
        """Ask the pipeline how it is, because there is a sign that this has changed."""
        self._wake.set()

    async def __aenter__(self) -> PoolMember:
        """Ask for the first time; that it does not answer is no error."""
        await self._ask()
        self._watch = asyncio.create_task(self._describe_regularly())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.client.close()

    async def _describe_regularly(self) -> None:
        while True:
            self._wait_s = self._settings.ask_s if self.ready else min(self._wait_s * 2, self._most_wait_s)
            self._next_at = time.monotonic() + self._wait_s
            async with self._woken_when_ready():
                if await set_within(self._wait_s, self._wake):
                    self._wake.clear()
                    self._wait_s = _FIRST_WAIT_S
            await self._ask()

    @asynccontextmanager
    async def _woken_when_ready(self) -> AsyncIterator[None]:
        """Have the draft node tell when the pipeline that it sets up is ready, while the context lasts."""

        async def wait() -> None:
            with contextlib.suppress(FlowEdgeError):  # the pipeline is asked again in any case
                await self.client.await_ready(self._wait_s, self._become)
                self._wake.set()

        waiting = [asyncio.create_task(wait())] if self.not_ready else []
        try:
            yield
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask the draft node how it is; have it set up its pipeline if it is idle and the spec is known."""
        try:
            device = await self._describe()
            if device.protocol_version != PROTOCOL_VERSION:
                raise ProtocolError(
                    f"{device.name} speaks version {device.protocol_version} of the protocol, this gateway "
                    f"{PROTOCOL_VERSION}; install the same version of FlowEdge on both"
                )
            is_free = device.role == IDLE and not device.not_ready and not device.stands_by_for
            if is_free and self._entry.spec is not None:
                await self._set_up()
                device = await self._describe()
            self._take(device)
        except (FlowEdgeError, ValueError) as error:
            self._fail(error)

    async def _describe(self) -> Device:
        return await within(self._settings.ask_limit_s, self.client.describe(), "no answer")

    async def _set_up(self) -> None:
        spec = self._entry.spec
        assert spec is not None
        self.not_ready = True
        self._note_loss(comes_back=True)
        self._become("it is being set up")
        try:
            await assemble_async(spec, self._report, on_transfer=self.progress.transferred)
        finally:
            self.progress.clear()

    def _report(self, device: str, message: str) -> None:
        self.progress.report(device, message)
        _log.info("%s: %s", device, message, extra=about(event="setting_up", peer=device))

    def _take(self, device: Device) -> None:
        """Take over what the draft node answered.

        Raises:
            DeviceError: when it has no pipeline, or that of another model.
            PipelineNotReadyError: while its pipeline is being set up.
        """
        self.device = device
        spec = self._entry.spec
        if device.not_ready:
            raise PipelineNotReadyError(device.name, device.not_ready)
        if device.stands_by_for:
            raise PipelineNotReadyError(device.name, f"it stands by for {device.stands_by_for}")
        if not device.stage_addresses:
            part = "it has no part in a pipeline" if device.role == IDLE else f"it is a {device.role}"
            raise DeviceError(device.name, f"{part}; name the draft node of a pipeline, or set one up")
        if spec is not None and not spec.is_served_by(device):
            raise DeviceError(device.name, f"it serves another pipeline, of {device.model}")
        if not self._entry.model:
            self.client.model = name_of(device.model)
        self.client.request_bytes = device.request_bytes
        self.client.device = device.name
        self._leases_when_asked = self.leases
        self.not_ready = False
        self._lost_at = None
        self._become("")

    def _fail(self, error: Exception) -> None:
        """Take note why the pipeline cannot answer.

        A device that is gone or busy may be back at any moment; any other error may need a person.
        """
        self.not_ready = isinstance(error, PipelineNotReadyError)
        # Where two gateways have the same devices, one is refused them until the other has set them up.
        comes_back = DeviceInUseError | DeviceLostError | PipelineNotReadyError | DeadlineError
        self._note_loss(comes_back=isinstance(error, comes_back))
        of_device = isinstance(error, DeviceError | DeadlineError)
        self._most_wait_s = self._settings.ask_s if of_device else self._settings.most_ask_s
        self._become(str(error))

    def _note_loss(self, *, comes_back: bool) -> None:
        """Note that it cannot answer; comes_back: whether that may end without a person."""
        if not comes_back:
            self._lost_at = None
        elif self.ready:
            self._lost_at = time.monotonic()

    def _become(self, problem: str) -> None:
        if problem and not self.problem:
            fields = about(event="pipeline_gone", peer=self.label, reason=problem)
            _log.warning("pipeline %s is left out: %s", self.label, problem, extra=fields)
        elif not problem and self.problem:
            _log.info(
                "pipeline %s is ready", self.label, extra=about(event="pipeline_ready", peer=self.label)
            )
        if problem != self.problem:
            self.problem = problem
            self._on_change()
