"""The role of a stage: a block of layers between two other devices.

torch is imported when a role is loaded, in the compute lane, and not before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from flowedge.agent.config.agent_config import AgentConfig, AgentLimits
from flowedge.agent.roles.stage_loading import asked_of, load_block, load_middle, select_block, select_middle
from flowedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
)
from flowedge.core.messages import Message
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.timeline import Timeline
from flowedge.live.transport.link import LinkEvents, LinkKind, OutLink
from flowedge.net.deadline import within
from flowedge.placement.admission import session_rows
from flowedge.system.memory import MemorySettings
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.open.model_opener import ModelOpener, ReportFetch
from flowedge.weights.open.model_request import ModelRequest, OpenedModel

if TYPE_CHECKING:
    from flowedge.engine.executors import BlockExecutor
    from flowedge.engine.stage import StageSpec
    from flowedge.live.live_stage import LiveStage
    from flowedge.live.pacing import EmulatedDevice

MakePacing: TypeAlias = "Callable[[], EmulatedDevice]"
"""Called at the taking of each role: what the device is to take for its work, when it emulates another."""

MAX_CAPACITY = 1 << 20  # cache rows of one session, whatever the memory
RETRY_S = 0.1  # the next device may still be loading


class StageRole:
    """Loads its layers, opens the link to the next device, then works until the pipeline ends."""

    def __init__(
        self,
        device: str,
        request: pb.StageRole,
        config: AgentConfig,
        lane: ComputeThread,
        library: LocalWeights,
        on_ended: Callable[[StageRole, str], None],
        observer: LiveObserver = UNOBSERVED,
        pacing: MakePacing | None = None,
    ) -> None:
        """`on_ended` is called when the pipeline has ended, and the role can be given up."""
        self.pipeline = request.pipeline
        self._device = device
        self._request = request
        self._config = config
        self._lane = lane
        self._library = library
        self._on_ended = on_ended
        self._observer = observer
        self._pacing = pacing
        self._cache_budget = 0
        self._opened: OpenedModel | None = None
        self._live: LiveStage | None = None
        self._executor: BlockExecutor | None = None
        self._ready_at: float | None = None
        self._stopped = False

    @property
    def in_use(self) -> bool:
        """See Role."""
        if self._stopped or self._live is None or self._ready_at is None:
            return not self._stopped
        waiting = time.monotonic() - self._ready_at < self._config.deadlines.claim_s
        return self._live.in_use or (waiting and self._live.ended is None)

    @property
    def ready(self) -> bool:
        """See Role."""
        return self._ready_at is not None and self._live is not None and self._live.ended is None

    @property
    def num_sessions(self) -> int:
        """See Role."""
        return 0 if self._live is None else self._live.num_sessions

    @property
    def queue_length(self) -> int:
        """See Role."""
        return 0 if self._live is None else self._live.queue_length

    @property
    def cache_budget(self) -> int:
        """See Role."""
        return self._cache_budget

    @property
    def is_drained(self) -> bool:
        """See Role."""
        return self._live is None or self._live.is_drained

    def begin_drain(self, error: DrainingError) -> None:
        """See Role."""
        if self._live is not None:
            self._live.begin_drain(error)

    def fail_sessions(self, error: DrainingError) -> None:
        """See Role."""
        if self._live is not None:
            self._live.fail_sessions(error)

    async def load(self, report: ReportFetch) -> None:
        """Take the role up. Raises FlowEdgeError, DeadlineError when it takes too long."""
        # Here and in the lane only: torch is slow to import.
        await report(f"loading {_what(self._request)}")
        await self._fetch(report)
        opened = self._opened
        load = load_middle if self._request.route else load_block
        work = self._lane.run(
            lambda: load(self._device, self._request, self._config, opened), self._config.deadlines.load_s
        )
        executor, _ = await within(self._config.deadlines.load_s, work, f"device {self._device} did not load")
        self._check_not_stopped()
        self._executor = executor
        from flowedge.engine.stage import Stage  # noqa: PLC0415
        from flowedge.live.live_stage import LiveStage  # noqa: PLC0415

        pacing = None if self._pacing is None else self._pacing()
        spec = _stage_spec(executor, self._request, pacing, self._config.memory, self._config.limits)
        self._cache_budget = spec.max_capacity * _cache_row_bytes(executor)
        self._live = LiveStage(
            Stage(self._device, spec),
            executor,
            self._lane,
            lambda reason: self._on_ended(self, reason),
            pacing,
            self._observer,
            pipeline=self.pipeline,
        )
        await report(f"connecting to {self._request.downstream}")
        await self._live.connect(self._open_downstream)
        self._check_not_stopped()
        self._ready_at = time.monotonic()

    def streams(self) -> LiveStage:
        """See Role."""
        if self._live is None:
            raise DeviceError(self._device, "it is still loading its layers")
        return self._live

    def timeline(self) -> Timeline:
        """See Role."""
        return self.streams().timeline

    def describe(self, device: pb.Device) -> None:
        """See Role."""
        request = self._request
        device.role = "middle model" if request.route else "stage"
        device.pipeline = self.pipeline
        device.model = request.model
        device.quant = request.quant
        device.layer_start, device.layer_stop = request.layer_start, request.layer_stop
        if self._executor is not None:
            device.weight_bytes = self._executor.weight_bytes
            device.cache_bytes = self._executor.cache_bytes

    async def stop(self, reason: str) -> None:
        """See Role."""
        self._stopped = True
        live, self._live = self._live, None
        executor, self._executor = self._executor, None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.release()
        try:
            if live is not None:
                await live.stop(reason)
        finally:
            if executor is not None:
                self._lane.run_later(executor.close)

    async def _fetch(self, report: ReportFetch) -> None:
        """Have the model's tensors here where the draft node says who has them."""
        request = self._request
        if not request.HasField("weights"):
            return
        select = select_middle if request.route else select_block
        config = self._config

        async def run(function: Callable[[], Any]) -> Any:
            return (await self._lane.run(function, config.deadlines.load_s))[0]

        opener = ModelOpener(self._device, self._library, config.weights, run, report)
        self._opened = await opener.open(
            ModelRequest.from_proto(
                request.weights,
                request.model,
                request.fingerprint,
                lambda checkpoint: select(self._device, request, config, checkpoint),
                None if request.route else lambda: asked_of(request),
            )
        )
        self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise DeviceError(self._device, "the role was given up while it was being loaded")

    async def _open_downstream(
        self, on_message: Callable[[Message], None], on_lost: Callable[[DeviceLostError], None]
    ) -> OutLink:
        """Try until the next device, which is set up at the same time, takes the stream."""
        deadline = time.monotonic() + self._config.deadlines.load_s
        while True:
            self._check_not_stopped()
            try:
                return await OutLink.open(
                    self._request.downstream,
                    LinkKind.IN_BAND,
                    pipeline=self.pipeline,
                    device=self._device,
                    events=LinkEvents(on_message, on_lost),
                    settings=self._config.link,
                    route=self._request.route,
                    observer=self._observer,
                )
            except FlowEdgeError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)


def _what(request: pb.StageRole) -> str:
    if request.route:
        return f"middle model {request.model}"
    return f"layers {request.layer_start} to {request.layer_stop - 1}"


def _stage_spec(
    executor: BlockExecutor,
    request: pb.StageRole,
    pacing: EmulatedDevice | None,
    memory: MemorySettings,
    limits: AgentLimits,
) -> StageSpec:
    from flowedge.engine.stage import StageSpec  # noqa: PLC0415
    from flowedge.models.layers.tensors import payload_dtype  # noqa: PLC0415

    block = executor.block
    sent_row_bytes = (executor.row_width + executor.added_width) * block.dtype.itemsize
    return StageSpec(
        is_first=block.is_first,
        width=executor.row_width,
        added_width=executor.added_width,
        vocab_size=request.vocab_size if request.route else block.vocab_size,
        dtype=payload_dtype(block.dtype),
        max_capacity=min(MAX_CAPACITY, session_rows(_cache_row_bytes(executor), memory)),
        padding_per_row=0 if pacing is None or request.route else max(pacing.row_bytes - sent_row_bytes, 0),
        answers=request.route > 0,
        max_rows=limits.segment_rows,
        max_sessions=limits.sessions,
        max_queue=limits.queued_segments,
    )


def _cache_row_bytes(executor: BlockExecutor) -> int:
    from flowedge.models.layers.cache import SessionCache  # noqa: PLC0415

    block = executor.block
    return SessionCache.bytes_per_row(block.config, block.num_layers, block.dtype)
