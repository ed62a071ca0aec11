"""Follows which agents are on the local network, by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection

from zeroconf import (
    DNSQuestionType,
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf import Error as ZeroconfError
from zeroconf._dns import DNSQuestion, DNSService
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf
from zeroconf.const import _CLASS_IN, _FLAGS_QR_QUERY, _TYPE_PTR, _TYPE_SRV

from flowedge.core.errors import BadRequestError, DeviceError, ProtocolError
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.advertiser import SERVICE_TYPE
from flowedge.discovery.interfaces import Interface, by_reachability, choose, local_interfaces
from flowedge.discovery.presence import Presence, PresenceEvent, Sighting
from flowedge.discovery.settings import DiscoverySettings
from flowedge.net.address import join_address

MAX_ADDRESSES = 16  # of one device
_RESOLVE_MS = 3000
_QUERIES_A_TTL = 3  # so that one or two lost answers make no agent stale
_TICK_S = 0.5
_log = logging.getLogger(__name__)

OnEvent = Callable[[PresenceEvent], None]


class AgentWatcher:
    """Follows the agents on the network while its context lasts; calls `on_event` with each change."""

    def __init__(
        self,
        settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
        on_event: OnEvent | None = None,
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._presence = Presence()
        self._interfaces: tuple[Interface, ...] = ()
        self._requests: dict[str, asyncio.Task[None]] = {}  # by instance
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
            raise DeviceError("this one", "has no network interface to search for agents on")
        try:
            zeroconf = AsyncZeroconf(interfaces=[used.multicast_ip for used in choice.chosen])
        except (OSError, RuntimeError) as error:
            raise DeviceError("this one", f"cannot search the network for agents: {error}") from error
        # Several processes of a machine share port 5353, and an answer by unicast could reach the wrong
        # process; so answers are asked for by multicast.
        self._cleanup.push_async_callback(zeroconf.async_close)
        browser = AsyncServiceBrowser(
            zeroconf.zeroconf,
            SERVICE_TYPE,
            handlers=[self._on_change],
            question_type=DNSQuestionType.QM,
        )
        self._cleanup.push_async_callback(browser.async_cancel)
        zeroconf.zeroconf.async_add_listener(_SignsOfLife(self._on_sign), None)
        timekeeper = asyncio.ensure_future(self._keep_time(zeroconf.zeroconf))
        self._cleanup.push_async_callback(self._end, timekeeper)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cleanup.aclose()

    async def _end(self, timekeeper: asyncio.Task[None]) -> None:
        tasks = [*self._requests.values(), timekeeper]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _tell(self, events: list[PresenceEvent]) -> None:
        if self._on_event is not None:
            for event in events:
                self._on_event(event)

    def _on_change(
        self,
        zeroconf: Zeroconf,
        service_type: str,  # noqa: ARG002 (zeroconf names its arguments)
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            self._tell(self._presence.goodbye(name))
            return
        self._resolve_soon(zeroconf, name)

    def _on_sign(self, zeroconf: Zeroconf, service: DNSService) -> None:
        if service.ttl == 0:
            self._tell(self._presence.goodbye(service.name))
        elif not self._presence.knows(service.name):
            self._resolve_soon(zeroconf, service.name)
        else:
            self._tell(self._presence.refreshed(service.name, float(service.ttl), time.monotonic()))

    def _resolve_soon(self, zeroconf: Zeroconf, name: str) -> None:
        previous = self._requests.get(name)
        if previous is None or previous.done():
            self._requests[name] = asyncio.ensure_future(self._resolve(zeroconf, name))

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE_TYPE, name)
        try:
            if await info.async_request(zeroconf, _RESOLVE_MS, question_type=DNSQuestionType.QM):
                device = self._device_of(info)
                service = zeroconf.cache.get_by_details(name, _TYPE_SRV, _CLASS_IN)
                ttl = float(service.ttl if service is not None else self._settings.ttl_s)
                self._tell(self._presence.heard(name, device, ttl, time.monotonic()))
        except (ProtocolError, OSError, ZeroconfError) as error:
            _log.warning("an advertisement was ignored: %s", error)

    def _device_of(self, info: AsyncServiceInfo) -> AdvertisedDevice:
        hosts = info.parsed_scoped_addresses(IPVersion.All)[:MAX_ADDRESSES]
        if not hosts or not info.port:
            raise ProtocolError(f"{info.name!r} advertises no address")
        addresses = {join_address(host, info.port) for host in hosts}
        return AdvertisedDevice.from_txt(info.properties, *by_reachability(addresses, self._interfaces))

    async def _keep_time(self, zeroconf: Zeroconf) -> None:
        """Ask again before announcements become stale, and report those that do; runs until cancelled."""
        asked = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._tell(self._presence.tick(now))
            ttl = self._presence.shortest_ttl()
            if ttl is not None and now - asked >= ttl / _QUERIES_A_TTL:
                asked = now
                zeroconf.async_send(question_for(SERVICE_TYPE))


def question_for(*names: str) -> DNSOutgoing:
    """Return the mDNS query for the services of these names."""
    query = DNSOutgoing(_FLAGS_QR_QUERY)
    for name in names:
        query.add_question(DNSQuestion(name, _TYPE_PTR, _CLASS_IN))
    return query


class _SignsOfLife(RecordUpdateListener):
    """Passes on every SRV record of an agent, also records that repeat what is known."""

    def __init__(self, on_sign: Callable[[Zeroconf, DNSService], None]) -> None:
        self._on_sign = on_sign

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:  # noqa: ARG002
        for update in records:
            if isinstance(update.new, DNSService) and update.new.name.endswith(f".{SERVICE_TYPE}"):
                self._on_sign(zc, update.new)


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
        BadRequestError: when timeout_s is not above 0.
        DeviceError: when there is no interface to search on, or the network refuses.
    """
    if not timeout_s > 0:
        raise BadRequestError(f"the time to look for devices is {timeout_s} s; it must be above 0")
    wanted = None if want is None else frozenset(want)
    complete = asyncio.Event()
    known: set[str] = set()

    def on_event(event: PresenceEvent) -> None:
        known.update((event.device.id, event.device.name))
        if wanted is not None and wanted <= known:
            complete.set()

    async with AgentWatcher(settings, on_event) as watcher:
        with contextlib.suppress(asyncio.TimeoutError):  # the devices known by then are the result
            await asyncio.wait_for(complete.wait(), timeout_s)
        devices = [sighting.device for sighting in watcher.sightings]
    return [device for device in devices if wanted is None or {device.id, device.name} & wanted]
