"""Follows which agents are on the local network, by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import platform
import time
from collections.abc import Callable, Collection

from zeroconf import Zeroconf
from zeroconf._dns import DNSQuestion
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.asyncio import AsyncZeroconf
from zeroconf.const import _CLASS_IN, _FLAGS_QR_QUERY, _TYPE_PTR

from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.core.log_fields import about
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.interfaces import Interface, choose, local_interfaces
from flowedge.discovery.parsing import IgnoredAnnouncement, RawAnnouncement, read_announcement
from flowedge.discovery.presence import Presence, PresenceEvent, Sighting
from flowedge.discovery.record_listeners import AnnouncementListener, CacheLimit
from flowedge.discovery.resolving import InstanceResolver
from flowedge.discovery.settings import DiscoverySettings
from flowedge.discovery.zeroconf_log import shorten_log
from flowedge.network.deadline import set_within
from flowedge.network.log_rate import LimitedLog
from flowedge.network.supervision import supervise

_FIRST_QUESTIONS_S = (0.05, 1.0, 3.0)  # after the start
_QUERIES_A_TTL = 3  # so that one or two lost answers make no agent stale
_TICK_S = 0.5
_log = logging.getLogger(__name__)

OnEvent = Callable[[PresenceEvent], None]


class AgentWatcher:
    """Follows the agents on the network while its context lasts; calls `on_event` with each change.

    Whatever the network sends, nothing is raised: announcements that cannot be used are logged, a few lines a
    minute at most.
    """

    def __init__(
        self,
        settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
        on_event: OnEvent | None = None,
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._presence = Presence()
        self._interfaces: tuple[Interface, ...] = ()
        self._ignored = LimitedLog(_log, "announcement_ignored")
        self._resolver: InstanceResolver | None = None
        self._cleanup = contextlib.AsyncExitStack()

    @property
    def sightings(self) -> list[Sighting]:
        """The agents that are present or stale, sorted by name."""
        return self._presence.sightings

    async def __aenter__(self) -> AgentWatcher:
        """Begin to search.

        Raises:
            DeviceError: when there is no interface to search on, or the network refuses.
        """
        choice = choose(local_interfaces(), self._settings.allow, self._settings.deny)
        self._interfaces = choice.chosen
        for out in choice.left_out:
            if out.interface.addresses:
                _log.info("not searched: %s", out)
        if not choice.chosen:
            raise DeviceError(platform.node(), "it has no network interface to search for agents on")
        try:
            shorten_log()
            zeroconf = AsyncZeroconf(interfaces=[used.multicast_ip for used in choice.chosen])
        except (OSError, RuntimeError) as error:
            raise DeviceError(platform.node(), f"cannot search the network for agents: {error}") from error
        self._cleanup.push_async_callback(zeroconf.async_close)
        await self._listen(zeroconf.zeroconf)
        return self

    async def _listen(self, zeroconf: Zeroconf) -> None:
        self._resolver = InstanceResolver(zeroconf, self._settings, self._resolved, self._ignored)
        self._cleanup.push_async_callback(self._resolver.close)
        zeroconf.async_add_listener(CacheLimit(), None)
        zeroconf.async_add_listener(
            AnnouncementListener(self, self._settings.service_type, self._ignored), None
        )
        running = supervise("the search for agents", lambda: self._keep_time(zeroconf), most_s=5.0)
        self._cleanup.push_async_callback(_end, asyncio.ensure_future(running))

    async def __aexit__(self, *error: object) -> None:
        await self._cleanup.aclose()

    def knows(self, name: str) -> bool:
        """Whether the announcement of this instance is known."""
        return self._presence.knows(name)

    def came(self, name: str) -> None:
        """Take in records of an instance that is new, or has changed."""
        if self._resolver is not None:
            self._resolver.resolve(name)

    def refreshed(self, name: str, ttl_s: float) -> None:
        """Take in a sign of life of an instance."""
        self._publish(self._presence.refreshed(name, ttl_s, time.monotonic()))

    def left(self, name: str) -> None:
        """Take in that an instance said goodbye."""
        self._publish(self._presence.goodbye(name))

    def _resolved(self, raw: RawAnnouncement, ttl_s: float) -> None:
        device = read_announcement(raw, self._interfaces, self._settings.service_type)
        if isinstance(device, IgnoredAnnouncement):
            self._ignored.add(str(device))
        elif self._presence.accepts(raw.name, device):
            self._publish(self._presence.heard(raw.name, device, ttl_s, time.monotonic()))
        else:
            self._ignored.add(f"device {device.name} ({device.address}) is ignored: too many are announced")

    def _publish(self, events: list[PresenceEvent]) -> None:
        if self._on_event is None:
            return
        for event in events:
            try:
                self._on_event(event)
            except Exception:  # noqa: BLE001 (whoever shows changes must not end the search)
                fields = about(event="presence_failed")
                _log.exception("a change of %s could not be shown", event.device.name, extra=fields)

    async def _keep_time(self, zeroconf: Zeroconf) -> None:
        """Ask for agents, and again before announcements become stale; report those that do become stale.

        Several processes of a machine share port 5353, and an answer by unicast could reach the wrong
        process; so answers are asked for by multicast.
        """
        await zeroconf.async_wait_for_start()
        began = asked = time.monotonic()
        questions = list(_FIRST_QUESTIONS_S)
        while True:
            now = time.monotonic()
            self._publish(self._presence.tick(now))
            ttl = self._presence.shortest_ttl()
            is_due = ttl is not None and now - asked >= ttl / _QUERIES_A_TTL
            if is_due or (questions and now - began >= questions[0]):
                del questions[:1]
                asked = now
                zeroconf.async_send(question_for(self._settings.service_type))
            await asyncio.sleep(_TICK_S if not questions else _FIRST_QUESTIONS_S[0])


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def question_for(*names: str) -> DNSOutgoing:
    """Return the mDNS query for the services of these names."""
    query = DNSOutgoing(_FLAGS_QR_QUERY)
    for name in names:
        query.add_question(DNSQuestion(name, _TYPE_PTR, _CLASS_IN))
    return query


async def discover(
    timeout_s: float,
    want: Collection[str] | None = None,
    settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
) -> list[AdvertisedDevice]:
    """Return the devices that answer within `timeout_s` seconds, sorted by name.

    An agent that answers on several interfaces is listed once, with all its addresses; two agents with the
    same id are both listed. Devices of another protocol version are listed, with the reason in `mismatch`.
    Announcements that break the format are logged and left out.

    Args:
        want: ids or names; only these devices are returned, as soon as all of them have answered.

    Raises:
        BadRequestError: when timeout_s is not finite and above 0.
        DeviceError: when there is no interface to search on, or the network refuses.
    """
    if not 0 < timeout_s < math.inf:
        raise BadRequestError(f"the time to look for devices is {timeout_s} s; it must be finite and above 0")
    wanted = None if want is None else frozenset(want)
    complete = asyncio.Event()
    known: set[str] = set()

    def on_event(event: PresenceEvent) -> None:
        known.update((event.device.id, event.device.name))
        if wanted is not None and wanted <= known:
            complete.set()

    async with AgentWatcher(settings, on_event) as watcher:
        await set_within(timeout_s, complete)  # the devices known by then are the result
        devices = [sighting.device for sighting in watcher.sightings]
    return [device for device in devices if wanted is None or {device.id, device.name} & wanted]
