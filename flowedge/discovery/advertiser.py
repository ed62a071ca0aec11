"""Makes a device known on the local network by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from flowedge.core.errors import DeviceError
from flowedge.core.log_fields import about
from flowedge.discovery.device_record import AdvertisedDevice
from flowedge.discovery.interfaces import Interface, InterfaceChoice, choose, local_interfaces
from flowedge.discovery.settings import DiscoverySettings
from flowedge.net.address import WILDCARDS, host_ip, split_address

SERVICE_TYPE = "_flowedge._tcp.local."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announcement:
    """Where a device is announced, and as what.

    Attributes:
        interfaces: an IP address of each interface to answer on; addresses: IPs that the agent is reached at.
    """

    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def plan(cls, host: str, interfaces: list[Interface], settings: DiscoverySettings) -> Announcement:
        """For an agent that listens on `host`: a wildcard, or an address of this machine.

        An address that is named is used on whatever interface it is, unless that is denied. BadRequestError
        for a name, DeviceError when nothing is left to announce it on.
        """
        if host in WILDCARDS:
            return cls._everywhere(host, choose(interfaces, settings.allow, settings.deny))
        ip = host_ip(host)
        own = [interface for interface in interfaces if ip in interface.ips]
        choice = choose(own, [interface.name for interface in own], settings.deny)
        if own and not any(ip in interface.ips for interface in choice.chosen):
            raise DeviceError("this one", f"it listens on {ip} alone, and {_reasons(choice)}")
        return cls((ip,), (ip,))

    @classmethod
    def _everywhere(cls, host: str, choice: InterfaceChoice) -> Announcement:
        used = choice.networked or choice.chosen
        addresses = [ip for interface in used for ip in _listened(host, interface)]
        if not addresses:
            raise DeviceError("this one", f"there is no interface to announce it on: {_reasons(choice)}")
        # What cannot be reached from elsewhere without saying through which interface is a last resort.
        routed = [ip for ip in addresses if not ipaddress.ip_address(ip).is_link_local]
        left_out = tuple(
            f"{out.interface}: {out.reason}" for out in choice.left_out if out.interface.addresses
        )
        multicast = tuple(interface.multicast_ip for interface in choice.chosen)
        return cls(multicast, tuple(routed or addresses), left_out)


class Advertiser:
    """Makes a device known on the chosen interfaces, from `start` to `stop`, also as they come and go."""

    def __init__(
        self,
        record: AdvertisedDevice,
        settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
        interfaces: Callable[[], list[Interface]] = local_interfaces,
    ) -> None:
        """`record.address` is where the agent listens; its host may be a wildcard, not a name."""
        self.record = record
        self._settings = settings
        self._interfaces = interfaces
        # An earlier start that left without a goodbye is another instance of the same id.
        self._instance = record.instance[:12] or uuid.uuid4().hex[:12]
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Announces the device; DeviceError when the network does not let it."""
        announcement = self._plan()
        await self._announce(announcement)
        self._follower = asyncio.ensure_future(self._follow(announcement))

    async def stop(self) -> None:
        """Takes the announcement back; harmless when there is none."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
        await self._take_back()

    async def __aenter__(self) -> Advertiser:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _plan(self) -> Announcement:
        host, _ = split_address(self.record.address)
        return Announcement.plan(host, self._interfaces(), self._settings)

    async def _follow(self, current: Announcement | None) -> None:
        """Announce the device anew whenever the interfaces have changed."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                planned = self._plan()
                if planned == current:
                    continue
                await self._take_back()
                current = None  # until the next one stands
                await self._announce(planned)
                current = planned
            except DeviceError as error:
                fields = about(event="announcement_failed", reason=error.reason)
                _log.warning("%s; looking again in %g s", error, self._settings.poll_s, extra=fields)

    async def _announce(self, announcement: Announcement) -> None:
        _, port = split_address(self.record.address)
        for left_out in announcement.left_out:
            fields = about(event="interface_left_out", reason=left_out)
            _log.info("not announced on %s", left_out, extra=fields)
        addresses = ", ".join(announcement.addresses)
        fields = about(event="announced", address=addresses)
        _log.info("announced as %s at %s", self.record.name, addresses, extra=fields)
        self._info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self.record.id[:48]}-{self._instance}.{SERVICE_TYPE}",
            parsed_addresses=list(announcement.addresses),
            port=port,
            properties=self.record.to_txt(),
            server=f"flowedge-{self._instance}.local.",
            host_ttl=self._settings.ttl_s,
        )
        try:
            self._zeroconf = AsyncZeroconf(interfaces=list(announcement.interfaces))
            # The instance makes the name unique, so it is announced at once instead of being probed for.
            announced = await self._zeroconf.async_register_service(self._info, cooperating_responders=True)
            await announced
        except (OSError, RuntimeError, ZeroconfError) as error:
            await self._take_back()
            raise DeviceError(
                self.record.name,
                f"cannot be advertised on {', '.join(announcement.interfaces)}: {error}; "
                "start it without zeroconf and name it with --peers instead",
            ) from error

    async def _take_back(self) -> None:
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        try:
            if self._info is not None:
                goodbye = await zeroconf.async_unregister_service(self._info)
                await goodbye
        except (OSError, ZeroconfError, KeyError) as error:
            fields = about(event="goodbye_failed", reason=str(error))
            _log.warning(
                "device %s: its goodbye could not be sent: %s", self.record.name, error, extra=fields
            )
        finally:
            await zeroconf.async_close()


def _listened(host: str, interface: Interface) -> list[str]:
    """The addresses of an interface that a socket bound to a wildcard listens on."""
    return [ip for ip in interface.ips if host == "::" or ipaddress.ip_address(ip).version == 4]


def _reasons(choice: InterfaceChoice) -> str:
    return "; ".join(f"{out.interface}: {out.reason}" for out in choice.left_out) or "there is none"
