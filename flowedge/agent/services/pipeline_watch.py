"""Tells watchers what happens in the pipeline of a draft node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.core.errors import CapacityError, DeviceError
from flowedge.live.activity.notes import ActivityNotes
from flowedge.live.activity.observed_draft_node import ObservedDraftNode
from flowedge.live.activity.reader import ActivityReader, TextOf
from flowedge.network.grpc_handlers import Context
from flowedge.network.replies import send_reply
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels

MAX_WATCHERS = 8
MAX_WAITING = 64  # callers that wait until the pipeline is ready
MOST_REASON = 1000  # characters of the reason why it is not
PERIOD_S = 0.1  # between two messages
STATE_S, SILENT_S = 0.5, 1.0  # between two states, and between two messages when nothing happens
MAX_UNREAD = 20  # messages that wait for a watcher
MOST_TEXT = 40  # characters of a token
_log = logging.getLogger(__name__)
_SPACE = "\u2581"  # with which some tokenizers' tokens of a new word begin


class Watcher:
    """The messages that wait for one watcher; None is the last."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[pb.PipelineActivity | None] = asyncio.Queue()
        self._missed = False

    def offer(self, message: pb.PipelineActivity) -> None:
        """Hand on a message, or drop it if too many wait; the next message says that it follows a gap."""
        if self._messages.qsize() >= MAX_UNREAD:
            self._missed = True
            return
        if self._missed and not message.incomplete:
            whole, message = message, pb.PipelineActivity(incomplete=True)
            message.MergeFrom(whole)
        self._missed = False
        self._messages.put_nowait(message)

    def end(self) -> None:
        self._messages.put_nowait(None)

    async def next(self) -> pb.PipelineActivity | None:
        return await self._messages.get()


class PipelineWatch:
    """Watches the pipeline of one draft node, as long as there are watchers.

    Attributes:
        problem: why the watch has failed; "" if it has not.
    """

    def __init__(self, device: str, role: DraftNodeRole, live: ObservedDraftNode, text_of: TextOf) -> None:
        self.role = role
        self.watchers: set[Watcher] = set()
        self.problem = ""
        self._live = live
        self._notes = ActivityNotes()
        self._reader = ActivityReader(device, role.stage_names, live.row_bytes, text_of)
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watcher(self) -> Iterator[Watcher]:
        """Add a watcher until the context is left."""
        added = Watcher()
        added.offer(pb.PipelineActivity(now=time.monotonic(), state=self._state()))
        self.watchers.add(added)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield added
        finally:
            self.watchers.discard(added)

    def _state(self) -> pb.PipelineState:
        live = self._live
        return self._reader.state(live.num_running, live.load().waiting, time.monotonic())

    async def _run(self) -> None:
        self._live.begin_notes(self._notes)
        try:
            await self._send_activity()
        except Exception as error:  # noqa: BLE001 (the pipeline goes on; watchers are told of the bug)
            _log.exception("the watch of a pipeline failed")
            self.problem = f"internal error: {type(error).__name__}: {error}"
        finally:
            self._live.end_notes(self._notes)
            self._notes.take()
            for watcher in self.watchers:
                watcher.end()

    async def _send_activity(self) -> None:
        """Tell watchers until there are none, or the pipeline has ended."""
        told, stated = 0.0, 0.0
        while self.watchers and self._live.alive and self.role.in_use:
            await asyncio.sleep(PERIOD_S)
            now = time.monotonic()
            notes, lost = self._notes.take()
            messages = self._reader.read(notes, now, lost=lost)
            if not (notes or lost or now - told >= SILENT_S):
                continue
            told = now
            if now - stated >= STATE_S:
                stated = now
                messages[-1].state.CopyFrom(self._state())
            for watcher in self.watchers:
                for message in messages:
                    watcher.offer(message)


class PipelineWatches:
    """Serves the watchers of one agent."""

    def __init__(self, device: str, read_s: float) -> None:
        """read_s: seconds within which a watcher has to take a message."""
        self._device = device
        self._read_s = read_s
        self._watch: PipelineWatch | None = None
        self._waiting = 0  # callers of await_ready

    async def await_ready(self, not_ready: Callable[[], str], context: Context) -> None:
        """Return when the pipeline is ready; until then, send a caller the reason why it is not.

        The reason is sent when it changes, and as a sign of life.

        Args:
            not_ready: returns the reason, "" when the pipeline is ready or there is none.

        Raises:
            CapacityError: when too many wait already.
            UnreadReplyError: when the caller does not take a message in time.
        """
        if self._waiting >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} wait for the pipeline of {self._device} already")
        self._waiting += 1
        try:
            said, said_at = "", 0.0
            while reason := not_ready():
                now = time.monotonic()
                if reason != said or now - said_at >= SILENT_S:
                    said, said_at = reason, now
                    await send_reply(
                        context, pb.PipelineActivity(now=now, not_ready=reason[:MOST_REASON]), self._read_s
                    )
                await asyncio.sleep(PERIOD_S)
        finally:
            self._waiting -= 1

    async def serve(self, role: DraftNodeRole, context: Context) -> None:
        """Send a watcher messages until it ends the call, or the role ends.

        Raises:
            CapacityError: when too many watch already.
            DeviceError: when the watch has failed.
            PipelineNotReadyError: while the pipeline is being set up.
            UnreadReplyError: when the watcher does not take a message in time.
        """
        live, models = role.serving()
        if self._watch is None or self._watch.role is not role:
            self._watch = PipelineWatch(self._device, role, live, token_text(models))
        if len(self._watch.watchers) >= MAX_WATCHERS:
            raise CapacityError(
                f"{MAX_WATCHERS} watch the pipeline of {self._device} already; end another watch first"
            )
        watch = self._watch
        try:
            with watch.watcher() as watcher:
                while (message := await watcher.next()) is not None:
                    await send_reply(context, message, self._read_s)
                if watch.problem:
                    raise DeviceError(self._device, watch.problem)
        finally:
            if self._watch is watch and not watch.watchers:
                self._watch = None  # so that nothing of the role is held


def token_text(models: DraftModels) -> TextOf:
    """Return a function that returns the text of a token, cut to MOST_TEXT characters."""
    tokenizer: Any = models.tokenizer
    special = frozenset(tokenizer.all_special_ids)  # such as the end of the answer, which is no text of it

    @lru_cache(maxsize=16_384)
    def text_of(token: int) -> str:
        if token in special:
            return ""
        text = str(tokenizer.decode([token]))
        if str(tokenizer.convert_ids_to_tokens(token)).startswith(_SPACE) and not text.startswith(" "):
            text = f" {text}"
        return text[:MOST_TEXT]

    return text_of
