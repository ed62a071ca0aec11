"""Agents find each other on the local network by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Collection
from types import TracebackType

import psutil
from zeroconf import DNSQuestionType, InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from flowedge.cluster.address import WILDCARDS, host_ip, join_address, split_address
from flowedge.cluster.record import DeviceRecord
from flowedge.errors import BadRequestError, DeviceError, ProtocolError

SERVICE_TYPE = "_flowedge._tcp.local."
_RESOLVE_MS = 3000
_log = logging.getLogger(__name__)


class Advertiser:
    """Makes a device known on the interfaces its agent is bound to, from `start` to `stop`."""

    def __init__(self, record: DeviceRecord) -> None:
        """`record.address` is where the agent listens; its host may be a wildcard, not a name."""
        self.record = record
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None

    async def start(self) -> None:
        """Announces the device; DeviceError when the network does not let it."""
        host, port = split_address(self.record.address)
        addresses = _bound_addresses(host)
        self._info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self.record.id}.{SERVICE_TYPE}",
            parsed_addresses=addresses,
            port=port,
            properties=self.record.to_txt(),
            server=f"flowedge-{self.record.id}.local.",
        )
        try:
            self._zeroconf = AsyncZeroconf(interfaces=_interfaces(host, addresses))
            # The id makes the name unique, so it is announced at once instead of being probed for.
            announced = await self._zeroconf.async_register_service(self._info, cooperating_responders=True)
            await announced
        except (OSError, ZeroconfError) as error:
            await self.stop()
            raise DeviceError(
                self.record.name,
                f"cannot be advertised on {host}: {error}; "
                "start it without zeroconf and name it with --peers instead",
            ) from error

    async def stop(self) -> None:
        """Takes the announcement back; harmless when there is none."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        try:
            if self._info is not None:
                goodbye = await zeroconf.async_unregister_service(self._info)
                await goodbye
        except (OSError, ZeroconfError, KeyError) as error:
            _log.warning("device %s: its goodbye could not be sent: %s", self.record.name, error)
        finally:
            await zeroconf.async_close()

    async def __aenter__(self) -> Advertiser:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def discover(timeout_s: float, want: Collection[str] | None = None) -> list[DeviceRecord]:
    """The devices that answer within `timeout_s`, sorted by name.

    A device that answers twice is listed once. Devices of another protocol version are listed; their
    `mismatch` says so. Answers that break the format are logged and left out. With `want`, a collection of
    ids or names, only those are returned, and the wait ends as soon as all of them have answered.

    Raises DeviceError when the network does not let itself be searched.
    """
    if not timeout_s > 0:
        raise BadRequestError(f"the time to look for devices is {timeout_s} s; it must be above 0")
    search = _Search(want)
    try:
        zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All)
    except OSError as error:
        raise DeviceError("this one", f"cannot search the network for agents: {error}") from error
    try:
        # Several processes share port 5353 on a machine; an answer sent to one of them alone could reach the
        # wrong one, so answers are asked for by multicast.
        browser = AsyncServiceBrowser(
            zeroconf.zeroconf,
            SERVICE_TYPE,
            handlers=[search.on_change],
            question_type=DNSQuestionType.QM,
        )
        await search.wait(timeout_s)
        await browser.async_cancel()
    finally:
        search.cancel()
        await zeroconf.async_close()
    return search.devices()


class _Search:
    """What has answered so far."""

    def __init__(self, want: Collection[str] | None) -> None:
        self._want = None if want is None else frozenset(want)
        self._found: dict[str, DeviceRecord] = {}  # by id
        self._requests: dict[str, asyncio.Task[None]] = {}  # by service name
        self._complete = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until everything wanted has answered, at most for the time given."""
        try:
            await asyncio.wait_for(self._complete.wait(), timeout_s)
        except asyncio.TimeoutError:  # what has answered by then is the result
            return

    def devices(self) -> list[DeviceRecord]:
        want = self._want
        return sorted(r for r in self._found.values() if want is None or r.id in want or r.name in want)

    def on_change(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            self._found = {key: r for key, r in self._found.items() if not name.startswith(f"{r.id}.")}
            return
        previous = self._requests.get(name)
        if previous is None or previous.done():
            self._requests[name] = asyncio.ensure_future(self._resolve(zeroconf, service_type, name))

    def cancel(self) -> None:
        for request in self._requests.values():
            request.cancel()

    async def _resolve(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        try:
            answered = await info.async_request(zeroconf, _RESOLVE_MS, question_type=DNSQuestionType.QM)
            if answered:
                record = _record_of(info)
                self._found[record.id] = record
                self._note_progress()
        except (ProtocolError, OSError, ZeroconfError) as error:
            _log.warning("an advertisement was ignored: %s", error)

    def _note_progress(self) -> None:
        known = {key for record in self._found.values() for key in (record.id, record.name)}
        if self._want is not None and self._want <= known:
            self._complete.set()


def _record_of(info: AsyncServiceInfo) -> DeviceRecord:
    addresses = info.parsed_scoped_addresses(IPVersion.All)
    if not addresses or not info.port:
        raise ProtocolError(f"{info.name!r} advertises no address")
    host = min(addresses, key=_reachability)
    return DeviceRecord.from_txt(info.properties, join_address(host, info.port))


def _reachability(host: str) -> tuple[bool, bool]:
    address = ipaddress.ip_address(host)
    return (address.is_loopback, address.version == 6)


def _bound_addresses(host: str) -> list[str]:
    """Where a socket bound to `host` is reached; loopback only when there is nothing else."""
    if host not in WILDCARDS:
        return [host_ip(host)]
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    every = [
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in families
    ]
    others = [ip for ip in every if not ipaddress.ip_address(ip).is_loopback]
    return others or every


def _interfaces(host: str, addresses: list[str]) -> InterfaceChoice | list[str]:
    """Where to answer: everywhere for a wildcard, else only where the agent can be reached."""
    return InterfaceChoice.All if host in WILDCARDS else addresses
