"""The role of the draft node: it sets its pipeline up, then drafts and verifies for it.

torch is imported when a role is loaded, in the compute lane, and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.roles.coordinator import (
    PlannedStage,
    StageSetup,
    plan_middles,
    plan_stages,
    release_stages,
)
from flowedge.agent.roles.reporting import ReportProgress
from flowedge.agent.roles.weight_sharing import WeightSharing
from flowedge.core.errors import BadRequestError, DeviceError, DrainingError
from flowedge.core.messages import Message
from flowedge.drafting.choice import drafters_of
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.express import ExpressFault
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.route_links import RouteOpener
from flowedge.live.timeline import Timeline
from flowedge.live.transport.link import LinkEvents, LinkKind, OutLink
from flowedge.net.deadline import ProgressDeadline
from flowedge.placement.admission import admit
from flowedge.system.memory import gib, read_available_memory, require_memory
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.known_models import is_reference
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.open.model_request import OpenedModel

if TYPE_CHECKING:
    from flowedge.agent.roles.draft_models import DraftModels
    from flowedge.agent.roles.stage_role import MakePacing
    from flowedge.drafting.drafter import Drafter
    from flowedge.live.live_draft_node import LiveDraftNode
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.models.layers.taps import Taps

SHORTER = "ask for fewer tokens, or shorten the prompt"


class DraftNodeRole:
    """Sets up the stages, loads the LM head and the drafter, and holds the pipeline."""

    def __init__(
        self,
        device: str,
        address_for: Callable[[str], str],
        request: pb.DraftNodeRole,
        config: AgentConfig,
        lane: ComputeThread,
        library: LocalWeights,
        taps: Taps | None = None,
        observer: LiveObserver = UNOBSERVED,
        pacing: MakePacing | None = None,
    ) -> None:
        """`address_for` gives the address at which a stage, given by its own, reaches this device.

        taps: of the pipeline (see models/layers/taps.py); those the drafter asks for by default.
        """
        self.pipeline = request.pipeline
        self._device = device
        self._address_for = address_for
        self._request = request
        self._config = config
        self._lane = lane
        self._library = library
        self._taps = taps
        self._observer = observer
        self._pacing = pacing
        self._stages: list[PlannedStage] = []
        self._middles: list[PlannedStage] = []
        self._models: DraftModels | None = None
        self._live: LiveDraftNode | None = None
        self._opened: OpenedModel | None = None
        self._ready = False
        self._stopped = False

    @property
    def in_use(self) -> bool:
        """See Role."""
        if self._stopped:
            return False
        return self._live is None or self._live.lost is None

    @property
    def ready(self) -> bool:
        """See Role."""
        return self._ready and self._live is not None and self._live.lost is None

    @property
    def num_sessions(self) -> int:
        """See Role."""
        return 0 if self._live is None else self._live.num_sessions

    @property
    def queue_length(self) -> int:
        """See Role."""
        return 0

    @property
    def cache_budget(self) -> int:
        """See Role."""
        return 0

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

    async def load(self, report: ReportProgress) -> None:
        """Take the role up, the stages' included. Raises FlowEdgeError, with all stages released."""
        patience = ProgressDeadline(self._config.deadlines.load_s)

        async def tell(device: str, text: str, transfer: pb.Transfer | None = None) -> None:
            patience.extend()  # weights take as long as they take, while they come
            await report(device, text, transfer)

        try:
            await patience.wait(self._load(tell), "the pipeline was not set up, and nothing was heard of it,")
        except BaseException:
            await self._release()
            raise
        self._ready = True

    def serving(self) -> tuple[LiveDraftNode, DraftModels]:
        """What serves requests. DeviceError while it is being loaded."""
        if self._live is None or self._models is None or not self._ready:
            raise DeviceError(self._device, "its pipeline is still being set up")
        return self._live, self._models

    def draft_with(self, drafter: Drafter) -> None:
        """Give sessions that begin from now on a drafter; none that drafts may be open.

        BadRequestError for one that asks for other taps than the pipeline has. DeviceError as `serving`.
        """
        live, models = self.serving()
        if drafter.taps != self._taps:
            raise BadRequestError(
                f"the drafter taps the layers {list(drafter.taps)}, the pipeline {list(self._taps or ())}"
            )
        models.executor.drafter = drafter
        live.draft_with(needs_features=drafter.needs_features)

    def streams(self) -> LiveDraftNode:
        """See Role."""
        if self._live is None:
            raise DeviceError(self._device, "it is still loading")
        return self._live

    def timeline(self) -> Timeline:
        """See Role."""
        return self.streams().timeline

    def describe(self, device: pb.Device) -> None:
        """See Role."""
        request = self._request
        if not self.in_use:  # the pipeline is broken; the device may be given another role
            return
        device.role = "draft node"
        device.pipeline = self.pipeline
        device.model, device.drafter, device.quant = request.model, request.drafter, request.quant
        if self._ready:
            device.stage_addresses.extend(request.stages)
            device.middles.extend(request.middles)
            device.stage_layers.extend(stage.num_layers for stage in self._stages)
        if self._models is not None:
            device.weight_bytes = self._models.weight_bytes

    async def stop(self, reason: str) -> None:
        """See Role."""
        self._stopped = True
        models, self._models = self._models, None
        try:
            if self._live is not None:
                await self._live.stop(reason)
                await self._release()
        finally:
            self._live = None
            if models is not None:
                self._lane.run_later(models.executor.close)
            if self._opened is not None:
                self._opened.release()

    def check_memory(self, rows: int) -> None:
        """CapacityError when a session's cache of so many rows would not fit the memory of every device."""
        if self._models is None:
            return
        room = read_available_memory(self._config.memory)
        require_memory(
            f"a context of {rows} rows does not fit the drafter's cache on device {self._device}",
            {"cache": self._models.drafter_bytes(rows), "reserve": self._config.memory.reserve_bytes},
            room.available,
            f"{gib(room.available)} of {gib(room.total)} are available, by {room.bound}",
            SHORTER,
        )
        for stage in [*self._stages, *self._middles]:
            own = stage.setup
            needed = rows * (self._models.row_bytes(stage.num_layers) if own is None else own.row_bytes)
            require_memory(
                f"a context of {rows} rows does not fit device {stage.name}",
                {"cache": needed},
                stage.memory_available,
                f"{gib(stage.memory_available)} were available before it loaded",
                SHORTER,
            )

    async def _load(self, report: ReportProgress) -> None:
        request, config = self._request, self._config
        load_s = config.deadlines.load_s
        if not request.stages:
            raise BadRequestError("a pipeline needs one stage or more")
        sharing = WeightSharing(self._device, self._library, config, self._lane, self._address_for)
        await report(self._device, f"opening {request.model}")
        kept = None
        if is_reference(request.model):
            self._opened = await sharing.open_head(request.model, list(request.stages), report)
            kept = self._opened.checkpoint
        opened, _ = await self._lane.run(lambda: _open_checkpoint(request, config, kept), load_s)
        stages = await plan_stages(list(request.stages), list(request.split), opened.num_layers, config.link)
        addresses = [middle.address for middle in request.middles]
        middles = await plan_middles(addresses, opened.middles, config.link)
        if self._taps is None:
            self._taps = opened.taps
        weights = await sharing.sources(request, opened.checkpoint, stages, middles, report)
        setup = StageSetup(
            pipeline=self.pipeline,
            model=request.model,
            quant=request.quant,
            dtype=request.dtype,
            fingerprint=opened.fingerprint,
            taps=self._taps,
            last_downstream=self._address_for(stages[-1].address),
            address_for=self._address_for,
            weights=weights,
        )
        self._stages, self._middles = stages, middles
        running = setup.start(stages, middles, report)
        try:
            await report(self._device, f"loading the LM head and the drafter {request.drafter or 'none'}")
            models, _ = await self._lane.run(
                lambda: _load_models(self._device, opened.checkpoint, request, config), load_s
            )
            self._models = models
            # From here on the last stage finds its downstream.
            self._live = self._make_live(models)
            await running.wait()
        finally:
            await running.cancel()
        open_express = [partial(self._open, stage.address, LinkKind.EXPRESS) for stage in stages]
        open_middles = [
            RouteOpener(
                partial(self._open, middle.address, LinkKind.IN_BAND),
                [partial(self._open, middle.address, LinkKind.EXPRESS)],
            )
            for middle in middles
        ]
        open_first = partial(self._open, stages[0].address, LinkKind.IN_BAND)
        await self._live.connect(open_first, open_express, open_middles)

    async def _release(self) -> None:
        await release_stages([*self._stages, *self._middles], self.pipeline)

    def _make_live(self, models: DraftModels) -> LiveDraftNode:
        from flowedge.agent.roles.draft_models import make_machine  # noqa: PLC0415
        from flowedge.live.live_draft_node import LiveDraftNode  # noqa: PLC0415

        if self._stopped:
            raise DeviceError(self._device, "the role was given up while it was being loaded")
        return LiveDraftNode(
            make_machine(
                self._device,
                models,
                len(self._stages),
                self._taps or (),
                len(self._middles),
                self._config.limits.sessions,
            ),
            models.executor,
            self._lane,
            progress_s=self._config.deadlines.progress_s,
            fault=ExpressFault.from_environment(),
            pacing=None if self._pacing is None else self._pacing(),
            observer=self._observer,
        )

    async def _open(
        self,
        address: str,
        lane: LinkKind,
        on_message: Callable[[Message], None],
        on_lost: Callable[[Any], None],
    ) -> OutLink:
        return await OutLink.open(
            address,
            lane,
            pipeline=self.pipeline,
            device=self._device,
            events=LinkEvents(on_message, on_lost),
            settings=self._config.link,
            observer=self._observer,
        )


def _open_checkpoint(request: pb.DraftNodeRole, config: AgentConfig, kept: Checkpoint | None) -> Any:
    """Runs in the compute lane."""
    from flowedge.models.libraries import import_libraries  # noqa: PLC0415

    import_libraries()
    import torch  # noqa: PLC0415

    from flowedge.agent.roles.draft_models import OpenedCheckpoint  # noqa: PLC0415
    from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415

    torch.set_num_threads(config.agent.threads)
    checkpoint = kept or Checkpoint.open(request.model, hub=config.weights.hub)
    middles = [middle.model for middle in request.middles]
    return OpenedCheckpoint.open(checkpoint, drafters_of(request), middles, request.dtype)


def _load_models(device: str, checkpoint: Any, request: pb.DraftNodeRole, config: AgentConfig) -> DraftModels:
    """Runs in the compute lane."""
    from flowedge.agent.roles.draft_models import DraftModels, required_memory  # noqa: PLC0415
    from flowedge.models.checkpoint.config_support import max_positions  # noqa: PLC0415

    weights, row_bytes = required_memory(checkpoint, drafters_of(request), request.dtype)
    admit(
        f"the LM head of {request.model} with the drafter {request.drafter or 'none'}",
        device,
        weights=weights,
        row_bytes=row_bytes,
        max_rows=max_positions(checkpoint.config),
        settings=config.memory,
    )
    return DraftModels.load(checkpoint, drafters_of(request), request.dtype)
