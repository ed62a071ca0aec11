"""A part in one pipeline: what a stage and a draft node have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from flowedge.agent.holding.left_loaded import LeftLoaded, LoadedModel, free_later
from flowedge.core.errors import DeviceError, DrainingError
from flowedge.core.ids import pipeline_label
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.engine.work_counts import Load
from flowedge.live.compute_thread import ComputeThread
from flowedge.live.live_driver import LiveDriver
from flowedge.live.timeline import Timeline
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.block_executor import BlockExecutor
    from flowedge.engine.executors.draft_models import DraftModels
    from flowedge.engine.executors.head_executor import HeadExecutor
    from flowedge.weights.model_request import OpenedModel

BEING_SET_UP = "its pipeline is being set up"  # what requests are told meanwhile
BEING_STOPPED = "it is being stopped"


class PipelineRole(ABC):
    """A part in one pipeline, from the moment it is claimed, before anything is loaded, until it is given up.

    Attributes:
        pipeline: its id, which is a secret of its devices; label: stands for the id elsewhere.
        origin: the id of the pipeline that was asked for, in whose place this one was set up; its own if it
            has lost no device.
        config: the settings that it was given the role with.
        owner: URI of the member that gave the role (see Member.uri); None without certificates, and for a
            role that the device has taken by itself.
        cache_budget: bytes that KV caches may take; 0 on a draft node, and before the role is loaded.
        stage: the part of a stage that a draft node has as well; None for none, and on a stage.
    """

    stage: PipelineRole | None = None

    _live: LiveDriver[Any, Any] | None

    def __init__(
        self,
        device: str,
        compute: ComputeThread,
        left: LeftLoaded,
        request: pb.StageRole | pb.DraftNodeRole,
        owner: str | None,
    ) -> None:
        """Raises BadRequestError when the settings in the request cannot be used."""
        self.config = PipelineConfig.from_json(request.config)
        self.pipeline = self.origin = request.pipeline
        self.label = pipeline_label(self.pipeline)
        self.owner = owner
        self.cache_budget = 0
        self._device = device
        self._compute = compute
        self._left = left
        self._live = None
        self._content: Hashable = None  # what is loaded, for a later role that would load the same
        self._executor: BlockExecutor | HeadExecutor | None = None
        self._models: DraftModels | None = None
        self._opened: OpenedModel | None = None  # keeps its tensors in the cache while the role is held
        self._loaded = False
        self._stopped = False
        self._loading: asyncio.Future[Any] | None = None

    @property
    def in_use(self) -> bool:
        """Whether the pipeline is being set up or alive, so that no other pipeline may take the device."""
        return not self._stopped and (self._live is None or self._live.alive)

    @property
    def ready(self) -> bool:
        """Whether the role is loaded and its pipeline is whole."""
        return self._loaded and self._live is not None and self._live.alive

    @property
    def lost(self) -> bool:
        """Whether the device leads a pipeline that was ready and has lost a device since."""
        return False

    @property
    def leads(self) -> bool:
        """Whether the device is the draft node of its pipeline."""
        return False

    @property
    def recovers(self) -> bool:
        """Whether the pipeline is set up again when it loses a device."""
        return False

    @property
    def hands_over(self) -> bool:
        """Whether the sessions of this device go on with other devices when it is stopped."""
        return self.recovers and not self.leads

    @property
    def not_ready(self) -> str:
        """Why the pipeline that the device leads cannot answer; "" if it can, or another device leads it."""
        return ""

    def load(self) -> Load:
        """Return what the device holds now; nothing while the role is being loaded."""
        return Load() if self._live is None else self._live.load()

    def begin_drain(self, error: DrainingError) -> None:
        """Refuse everything new with an error; open sessions go on."""
        if self._live is not None:
            self._live.begin_drain(error)

    def fail_sessions(self, error: DrainingError) -> None:
        """End every session with an error. The load is drained when all peers have been told."""
        if self._live is not None:
            self._live.fail_sessions(error)

    def streams(self) -> LiveDriver[Any, Any]:
        """Return the owner of the pipeline's streams. Raises DeviceError while the role is being loaded."""
        if self._live is None:
            raise DeviceError(self._device, "it is still loading")
        return self._live

    def timeline(self) -> Timeline:
        """Return what the device did in this role. Raises DeviceError while the role is being loaded."""
        return self.streams().timeline

    @abstractmethod
    def describe(self, device: pb.Device) -> None:
        """Fill in the role's part of the device's description."""

    async def stop(self, reason: str, *, lost: bool = False) -> None:
        """Give the role up: end its loading, its sessions and its links, and free the model.

        The model of a pipeline that is lost, and will be set up again, is left to the next role.

        lost: whether it is known to be lost, before the role has found out.
        """
        self._stopped = True
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        live, self._live = self._live, None
        executor, self._executor = self._executor, None
        models, self._models = self._models, None
        opened, self._opened = self._opened, None
        leaves = self._loaded and self.recovers and live is not None and (lost or not live.alive)
        try:
            if live is not None:
                await live.stop(reason)
        finally:
            if leaves and executor is not None:
                self._left.leave(LoadedModel(self._content, executor, opened, models))
            else:
                free_later(executor, opened, self._compute)

    async def _until_stopped(self, loading: Coroutine[Any, Any, None]) -> None:
        """Await the loading of the role; `stop` cancels it.

        The loading has ended when this returns or raises, so that it holds no socket.

        Raises what the loading raises, and DeviceError when the role is given up meanwhile.
        """
        if self._stopped:
            loading.close()
            self._check_not_stopped()
        task = self._loading = asyncio.ensure_future(loading)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            ended = task.done()  # then it was `stop`, and nobody has cancelled this call
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not ended:
                raise
            self._check_not_stopped()
            raise
        finally:
            self._loading = None

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise DeviceError(self._device, "the role was given up while it was being loaded")
