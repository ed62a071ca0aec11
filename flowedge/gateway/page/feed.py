"""What browsers are told: of the cluster and of the activity of its pipelines, while anybody looks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI

from flowedge.agent.config_loading import load_config
from flowedge.client.activity import PipelineActivity, PipelineState
from flowedge.core.errors import CapacityError, DeadlineError, FlowEdgeError
from flowedge.core.ids import request_of
from flowedge.core.log_fields import about
from flowedge.discovery.discovery import AgentWatcher
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.errors import SERVER, ApiError
from flowedge.gateway.page import picture
from flowedge.gateway.page.devices import DeviceReply, DeviceSurvey
from flowedge.gateway.pipelines.member import PoolMember
from flowedge.gateway.state import Gateway
from flowedge.gateway.streams import ServerEvent
from flowedge.network.deadline import set_within, within

ASK_S = 1.5  # between two questions to the devices
AGAIN_S = 1.5  # before a draft node is watched again
FRESH_S = 3.0  # for which a picture of the cluster is shown again
MOST_BROWSERS = 64
MOST_UNREAD = 40  # events that wait for a browser
MOST_SESSIONS = 512  # whose numbers are remembered
END_S = 5.0  # after the last browser has gone

_log = logging.getLogger(__name__)


class _Event:
    """An event as each reader may see it, encoded once for each."""

    def __init__(self, kind: str, encode: Callable[[ApiCaller | None], str]) -> None:
        self.kind = kind
        self._encode = encode
        self._encoded: dict[str | None, str] = {}  # by the name of the reader's key

    def data(self, reader: ApiCaller | None) -> str:
        name = None if reader is None else reader.name
        if name not in self._encoded:
            self._encoded[name] = self._encode(reader)
        return self._encoded[name]


class Browser:
    """The events that wait for one browser; `reader` is who looks, None without a needed key."""

    def __init__(self, reader: ApiCaller | None) -> None:
        self._reader = reader
        self._events: asyncio.Queue[ServerEvent] = asyncio.Queue()

    def offer(self, event: _Event) -> None:
        """Hand on an event; activity is dropped while too much waits."""
        if self._events.qsize() < MOST_UNREAD or (
            event.kind != "activity" and self._events.qsize() < 2 * MOST_UNREAD
        ):
            self._events.put_nowait(ServerEvent(event.data(self._reader), event.kind))

    async def next(self, wait_s: float) -> ServerEvent | None:
        """Return the next event; None if there is none for a while."""
        try:
            return await within(wait_s, self._events.get(), "there was no event")
        except DeadlineError:
            return None


class PageFeed:
    """One for a gateway. It asks and watches the devices while browsers look, and a little longer."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._browsers: set[Browser] = set()
        self._survey = DeviceSurvey()
        self._asking = asyncio.Lock()
        self._changed = asyncio.Event()  # set when a pipeline can answer, or cannot any more
        gateway.pipelines.watchers.add(self._changed)
        self._asked = float("-inf")
        self._parts: dict[str, list[tuple[str, str]]] = {}  # of each pipeline: address and part of devices
        self._states: dict[str, PipelineState] = {}
        self._sessions: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._next_session = 1
        self._watcher: AgentWatcher | None = None
        self._task: asyncio.Task[None] | None = None

    async def cluster(self) -> dict[str, Any]:
        """Return the picture of the cluster."""
        async with self._asking:
            if time.monotonic() - self._asked > FRESH_S:
                await self._ask()
        if self._task is None:
            await self._survey.close()
        return self._cluster()

    def for_reader(self, cluster: dict[str, Any], reader: ApiCaller | None) -> dict[str, Any]:
        """Return a picture of the cluster with what the reader may do."""
        return {**cluster, "key_required": self._gateway.keys.required, "may_chat": reader is not None}

    async def events(self, reader: ApiCaller | None) -> AsyncIterator[ServerEvent]:
        """Yield events until the gateway stops.

        Texts of tokens are those of the reader's own requests. Where no key is needed, they are those of all.

        Args:
            reader: None for a reader without a key where a key is needed.

        Raises:
            ApiError: with status 503, when too many browsers look already.
        """
        if len(self._browsers) >= MOST_BROWSERS:
            raise ApiError(
                503,
                f"{MOST_BROWSERS} pages look at this gateway already; close some of them",
                kind=SERVER,
                code="too_many_pages",
                retry_after_s=END_S,
            )
        browser = Browser(reader)
        self._browsers.add(browser)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            first = json.dumps(self.for_reader(await self.cluster(), reader))
            yield ServerEvent(first, "cluster")
            while not self._gateway.draining.is_set():
                event = await browser.next(1.0)
                if event is not None:
                    yield event
        finally:
            self._browsers.discard(browser)

    def _publish(self, event: _Event) -> None:
        for browser in self._browsers:
            browser.offer(event)

    async def _run(self) -> None:
        """Look until no browser does; a browser that comes during the end begins it anew."""
        while self._browsers and not self._gateway.draining.is_set():
            await self._look()
        self._task = None

    async def _look(self) -> None:
        """Ask and watch until no browser has looked for a while."""
        tasks = [asyncio.create_task(self._describe_regularly()), asyncio.create_task(self._search())]
        followed: set[PoolMember] = set()
        looked = time.monotonic()
        try:
            while time.monotonic() - looked < END_S and not self._gateway.draining.is_set():
                for member in set(self._gateway.pipelines.members) - followed:  # some are opened later
                    followed.add(member)
                    tasks.append(asyncio.create_task(self._follow_activity(member)))
                await asyncio.sleep(0.5)
                if self._browsers:
                    looked = time.monotonic()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._states.clear()
            await self._survey.close()

    async def _describe_regularly(self) -> None:
        """Ask the devices regularly, and tell browsers of changes."""
        told = ""
        while True:
            async with self._asking:
                await self._ask()
            told = self._publish_cluster(told)
            if await set_within(ASK_S, self._changed):
                self._changed.clear()
                told = self._publish_cluster(told)  # before the devices are asked, which may take a while

    def _publish_cluster(self, told: str) -> str:
        """Tell browsers of the cluster if it is not as they were told; return what they know."""
        cluster = self._cluster()
        event = _Event("cluster", lambda reader: json.dumps(self.for_reader(cluster, reader)))
        if event.data(None) != told:
            self._publish(event)
        return event.data(None)

    async def _ask(self) -> None:
        members = self._gateway.pipelines.members
        await self._survey.ask([*(member.address for member in members), *self._known_addresses()])
        for member in members:
            draft_node = self._survey.reply(member.address)
            if draft_node.present and draft_node.device is not None and draft_node.device.stage_addresses:
                self._parts[member.label] = picture.pipeline_devices(draft_node.device)
        missing = [
            address for address in self._known_addresses() if self._survey.reply(address).device is None
        ]
        if missing:
            await self._survey.ask([*(member.address for member in members), *self._known_addresses()])
        self._asked = time.monotonic()

    def _known_addresses(self) -> list[str]:
        return [address for parts in self._parts.values() for address, _ in parts]

    async def _search(self) -> None:
        """Look for devices on the network."""
        try:
            settings = load_config().config.discovery  # as every command of this machine searches
            async with AgentWatcher(settings) as self._watcher:
                await asyncio.Event().wait()
        except FlowEdgeError as error:
            _log.info("devices are not searched for: %s", error, extra=about(event="page_search_failed"))
        finally:
            self._watcher = None

    async def _follow_activity(self, member: PoolMember) -> None:
        """Tell browsers of the activity of a pipeline; begin again when it has come back."""
        while True:
            try:
                async for told in member.client.watch():
                    self._publish(self._activity(member.label, told))
            except (CapacityError, FlowEdgeError) as error:
                _log.debug("pipeline %s is not watched: %s", member.label, error)
            member.ask_soon()
            self._states.pop(member.label, None)
            gone = json.dumps({"pipeline": member.label})
            self._publish(_Event("unwatched", lambda _, gone=gone: gone))  # type: ignore[misc]
            await asyncio.sleep(AGAIN_S)

    def _activity(self, pipeline: str, told: PipelineActivity) -> _Event:
        if told.state is not None:
            self._states[pipeline] = told.state
        named = {each.session for each in told.computed} | {each.session for each in told.trees}
        plain = picture.of_activity(
            pipeline, told, {session: self._number(pipeline, session) for session in named}
        )
        askers = {session: self._gateway.asker_of(request_of(session)) for session in named}

        def encode(reader: ApiCaller | None) -> str:
            if reader is None or not told.trees:
                return json.dumps(plain)
            everything = not self._gateway.keys.required
            readable = {name for name, asker in askers.items() if everything or asker == reader.name}
            return json.dumps(picture.with_texts(plain, told, readable))

        return _Event("activity", encode)

    def _number(self, pipeline: str, session: str) -> int:
        """Return the number by which browsers know a session, whose name may tell of its client."""
        key = (pipeline, session)
        if key not in self._sessions:
            self._sessions[key] = self._next_session
            self._next_session += 1
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return self._sessions[key]

    def _cluster(self) -> dict[str, Any]:
        pipelines, ids = [], set()
        for member in self._gateway.pipelines.members:
            devices = self._devices(member)
            ids |= {reply.device.id for reply, _ in devices if reply.device is not None}
            pipelines.append(picture.of_pipeline(member, devices, self._states.get(member.label)))
        sightings = self._watcher.sightings if self._watcher is not None else []
        others = [picture.of_other(each) for each in sightings if each.device.id not in ids]
        models = [
            {
                "id": model.name,
                "ready": bool(model.ready),
                "context": model.context,
                "no_chat_template": model.no_chat_template,
            }
            for model in self._gateway.pipelines.models()
        ]
        opening = self._gateway.pipelines.opening
        return {
            "models": models,
            "pipelines": pipelines,
            "others": others[: picture.MOST_OTHERS],
            "opening": None if opening is None else picture.of_devices(opening),
        }

    def _devices(self, member: PoolMember) -> list[tuple[DeviceReply, str]]:
        """Return what the devices of a pipeline answered; those of the last time while it is gone."""
        draft_node = self._survey.reply(member.address)
        devices = [(draft_node, picture.DRAFT_NODE)]
        for address, part in self._parts.get(member.label, []):
            devices.append((self._survey.reply(address), part))
        return devices


def feed_of(app: FastAPI) -> PageFeed:
    """Return the feed of an application, which is made when it is first asked for."""
    with contextlib.suppress(AttributeError):
        found: PageFeed = app.state.page_feed
        return found
    made = app.state.page_feed = PageFeed(app.state.gateway)
    return made
