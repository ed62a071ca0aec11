"""Follows which agents are on the local network, by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from types import TracebackType

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

from flowedge.core.errors import DeviceError, ProtocolError
from flowedge.discovery.advertiser import SERVICE_TYPE
from flowedge.discovery.device_record import AdvertisedDevice
from flowedge.discovery.interfaces import Interface, choose, local_interfaces
from flowedge.discovery.presence import Presence, PresenceEvent, Sighting
from flowedge.discovery.reachability import by_reachability
from flowedge.discovery.settings import DiscoverySettings
from flowedge.net.address import join_address

MAX_ADDRESSES = 16  # of one device
_RESOLVE_MS = 3000
_QUERIES_A_TTL = 3  # so that a lost answer or two make no one stale
_TICK_S = 0.5
_log = logging.getLogger(__name__)

OnEvent = Callable[[PresenceEvent], None]


class AgentWatcher:
    """Knows the agents that answer, while its context lasts; `on_event` is told each change."""

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
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._clock: asyncio.Task[None] | None = None

    @property
    def sightings(self) -> list[Sighting]:
        """The agents that are there, or were lately, sorted by name."""
        return self._presence.sightings

    async def __aenter__(self) -> AgentWatcher:
        """DeviceError when the network does not let itself be searched."""
        choice = choose(local_interfaces(), self._settings.allow, self._settings.deny)
        self._interfaces = choice.chosen
        for out in choice.left_out:
            if out.interface.addresses:
                _log.info("not searched: %s: %s", out.interface, out.reason)
        if not choice.chosen:
            raise DeviceError("this one", "has no network interface to search for agents on")
        try:
            self._zeroconf = AsyncZeroconf(interfaces=[used.multicast_ip for used in choice.chosen])
        except (OSError, RuntimeError) as error:
            raise DeviceError("this one", f"cannot search the network for agents: {error}") from error
        # Several processes share port 5353 on a machine; an answer sent to one of them alone could reach the
        # wrong one, so answers are asked for by multicast.
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf,
            SERVICE_TYPE,
            handlers=[self._on_change],
            question_type=DNSQuestionType.QM,
        )
        self._zeroconf.zeroconf.async_add_listener(_SignsOfLife(self._on_sign), None)
        self._clock = asyncio.ensure_future(self._keep_time(self._zeroconf.zeroconf))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._requests.values(), *([self._clock] if self._clock is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_close()

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
                record = self._record_of(info)
                service = zeroconf.cache.get_by_details(name, _TYPE_SRV, _CLASS_IN)
                ttl = float(service.ttl if service is not None else self._settings.ttl_s)
                self._tell(self._presence.heard(name, record, ttl, time.monotonic()))
        except (ProtocolError, OSError, ZeroconfError) as error:
            _log.warning("an advertisement was ignored: %s", error)

    def _record_of(self, info: AsyncServiceInfo) -> AdvertisedDevice:
        hosts = info.parsed_scoped_addresses(IPVersion.All)[:MAX_ADDRESSES]
        if not hosts or not info.port:
            raise ProtocolError(f"{info.name!r} advertises no address")
        addresses = {join_address(host, info.port) for host in hosts}
        return AdvertisedDevice.from_txt(info.properties, *by_reachability(addresses, self._interfaces))

    async def _keep_time(self, zeroconf: Zeroconf) -> None:
        """Ask again before what is known grows old, and notice what has."""
        asked = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._tell(self._presence.tick(now))
            ttl = self._presence.shortest_ttl()
            if ttl is not None and now - asked >= ttl / _QUERIES_A_TTL:
                asked = now
                question = DNSOutgoing(_FLAGS_QR_QUERY)
                question.add_question(DNSQuestion(SERVICE_TYPE, _TYPE_PTR, _CLASS_IN))
                zeroconf.async_send(question)


class _SignsOfLife(RecordUpdateListener):
    """Passes on every SRV record of an agent, also one that says what was known."""

    def __init__(self, on_sign: Callable[[Zeroconf, DNSService], None]) -> None:
        self._on_sign = on_sign

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:  # noqa: ARG002
        for update in records:
            if isinstance(update.new, DNSService) and update.new.name.endswith(f".{SERVICE_TYPE}"):
                self._on_sign(zc, update.new)
