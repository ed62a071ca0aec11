"""What a role leaves loaded when its pipeline is lost, for the role in the pipeline that is set up next."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowedge.device.process import release_unused_memory
from flowedge.live.compute_thread import ComputeThread

if TYPE_CHECKING:
    from flowedge.engine.executors.block_executor import BlockExecutor
    from flowedge.engine.executors.draft_models import DraftModels
    from flowedge.engine.executors.head_executor import HeadExecutor
    from flowedge.weights.model_request import OpenedModel


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """What a role has loaded.

    Attributes:
        content: what it is; equal for two roles that would load the same.
        opened: its checkpoint, whose files it protects; None where the role has opened none by itself.
        models: of a draft node.
    """

    content: Hashable
    executor: BlockExecutor | HeadExecutor
    opened: OpenedModel | None = None
    models: DraftModels | None = None


class LeftLoaded:
    """Holds what the last roles have left, until a role takes it or loads something else, or time is over.

    To be used on the event loop; what is left has no sessions any more, and is freed in the compute thread.
    """

    def __init__(self, compute: ComputeThread, seconds: float) -> None:
        """seconds: for how long."""
        self._compute = compute
        self._seconds = seconds
        self._left: dict[Hashable, LoadedModel] = {}
        self._timer: asyncio.TimerHandle | None = None

    def leave(self, loaded: LoadedModel) -> None:
        """Hold what a role that has ended had loaded; the same content that was held is freed."""
        before = self._left.pop(loaded.content, None)
        if before is not None:
            free_later(before.executor, before.opened, self._compute)
        self._left[loaded.content] = loaded
        self._compute.run_later(loaded.executor.drop_sessions)
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.free)

    def take(self, content: Hashable) -> LoadedModel | None:
        """Return what is held of this content. If it is not held, all is freed, to have room for it."""
        left = self._left.pop(content, None)
        if left is None:
            self.free()
        elif not self._left:
            self._cancel()
        return left

    def free(self) -> None:
        """Free what is held."""
        held, self._left = self._left, {}
        self._cancel()
        for left in held.values():
            free_later(left.executor, left.opened, self._compute)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def free_later(
    executor: BlockExecutor | HeadExecutor | None, opened: OpenedModel | None, compute: ComputeThread
) -> None:
    """Free what a role had loaded when the compute thread has done what it has to do."""
    if executor is not None:
        compute.run_later(executor.close)
    if opened is not None:
        opened.release()
    compute.run_later(release_unused_memory)
