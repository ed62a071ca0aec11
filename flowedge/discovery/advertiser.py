"""Announces a device on the local network by zeroconf (mDNS and DNS-SD)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import platform
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from flowedge.core.errors import DeviceError
from flowedge.core.log_fields import about
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.interfaces import Interface, InterfaceChoice, choose, local_interfaces
from flowedge.discovery.record_listeners import CacheLimit
from flowedge.discovery.settings import DiscoverySettings
from flowedge.discovery.zeroconf_log import shorten_log
from flowedge.network.address import WILDCARDS, host_ip, split_address
from flowedge.network.supervision import supervise

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Announcement:
    """Where a device is announced, and at which addresses.

    Attributes:
        interfaces: an IP address of each interface to announce on.
        addresses: IP addresses at which the agent can be reached.
        left_out: "interface: reason" of each interface that is not used.
    """

    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]
    left_out: tuple[str, ...] = field(default=(), compare=False)  # a change of them is nothing to announce

    @classmethod
    def plan(cls, host: str, interfaces: list[Interface], settings: DiscoverySettings) -> Announcement:
        """Plan the announcement of an agent that listens on `host`: a wildcard, or an IP address.

        An IP address is announced whatever the name of its interface, unless the interface is denied.

        Raises:
            BadRequestError: when the host is a name.
            DeviceError: when no interface is left to announce it on.
        """
        if host in WILDCARDS:
            return cls._everywhere(host, choose(interfaces, settings.allow, settings.deny))
        ip = host_ip(host)
        own = [interface for interface in interfaces if ip in interface.ips]
        choice = choose(own, [interface.name for interface in own], settings.deny)
        if own and not any(ip in interface.ips for interface in choice.chosen):
            raise DeviceError(platform.node(), f"it listens on {ip} alone, and {_reasons(choice)}")
        return cls((ip,), (ip,))

    @classmethod
    def _everywhere(cls, host: str, choice: InterfaceChoice) -> Announcement:
        used = choice.networked or choice.chosen
        addresses = [ip for interface in used for ip in _listened(host, interface)]
        if not addresses:
            raise DeviceError(platform.node(), f"there is no interface to announce it on: {_reasons(choice)}")
        # A link-local address needs the name of the sender's interface, so it is a last resort.
        routed = [ip for ip in addresses if not ipaddress.ip_address(ip).is_link_local]
        left_out = tuple(str(out) for out in choice.left_out if out.interface.addresses)
        multicast = tuple(interface.multicast_ip for interface in choice.chosen)
        return cls(multicast, tuple(routed or addresses), left_out)


class Advertiser:
    """Announces a device from `start` to `stop`, and anew whenever the interfaces change."""

    def __init__(
        self,
        device: AdvertisedDevice,
        settings: DiscoverySettings = DiscoverySettings(),  # noqa: B008 (frozen)
        interfaces: Callable[[], list[Interface]] = local_interfaces,
    ) -> None:
        """device: its address is where the agent listens; the host may be a wildcard, not a name.

        interfaces: returns the interfaces of this machine.
        """
        self.device = device
        self._settings = settings
        self._interfaces = interfaces
        # An earlier start that ended without a goodbye is another instance of the same id.
        self._instance = device.instance[:12] or uuid.uuid4().hex[:12]
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None
        self._follower: asyncio.Task[None] | None = None
        self._current: Announcement | None = None  # None until the next announcement stands

    async def start(self) -> None:
        """Announce the device.

        Raises:
            DeviceError: when there is no interface to announce it on, or the network refuses.
        """
        announcement = self._plan()
        await self._announce(announcement)
        self._current = announcement
        running = supervise("the announcement of this device", self._follow)
        self._follower = asyncio.ensure_future(running)

    async def stop(self) -> None:
        """Take the announcement back; has no effect when there is none."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await follower
        await self._take_back()

    async def __aenter__(self) -> Advertiser:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def _plan(self) -> Announcement:
        host, _ = split_address(self.device.address)
        return Announcement.plan(host, self._interfaces(), self._settings)

    async def _follow(self) -> None:
        """Announce the device anew whenever the interfaces have changed; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                planned = self._plan()
                if planned == self._current:
                    continue
                self._current = None
                await self._take_back()
                await self._announce(planned)
                self._current = planned
            except DeviceError as error:
                fields = about(event="announcement_failed", reason=error.reason)
                _log.warning("%s; trying again in %g s", error, self._settings.poll_s, extra=fields)

    async def _announce(self, announcement: Announcement) -> None:
        _, port = split_address(self.device.address)
        for left_out in announcement.left_out:
            fields = about(event="interface_left_out", reason=left_out)
            _log.info("not announced on %s", left_out, extra=fields)
        addresses = ", ".join(announcement.addresses)
        fields = about(event="announced", address=addresses)
        _log.info("announced as %s at %s", self.device.name, addresses, extra=fields)
        self._info = AsyncServiceInfo(
            self._settings.service_type,
            f"{self.device.id[:48]}-{self._instance}.{self._settings.service_type}",
            parsed_addresses=list(announcement.addresses),
            port=port,
            properties=self.device.to_txt(),
            server=f"flowedge-{self._instance}.local.",
            host_ttl=self._settings.ttl_s,
        )
        try:
            shorten_log()
            self._zeroconf = AsyncZeroconf(interfaces=list(announcement.interfaces))
            self._zeroconf.zeroconf.async_add_listener(CacheLimit(), None)
            # The instance makes the name unique, so it is announced at once without probing for the name.
            announced = await self._zeroconf.async_register_service(self._info, cooperating_responders=True)
            await announced
        except (OSError, RuntimeError, ZeroconfError) as error:
            await self._take_back()
            raise DeviceError(
                self.device.name,
                f"cannot be advertised on {', '.join(announcement.interfaces)}: {error}; "
                "start it with --no-advertise, and name it with --peers instead",
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
                "device %s: its goodbye could not be sent: %s", self.device.name, error, extra=fields
            )
        finally:
            await zeroconf.async_close()


def _listened(host: str, interface: Interface) -> list[str]:
    """Return the addresses of an interface that a socket bound to a wildcard listens on."""
    return [ip for ip in interface.ips if host == "::" or ipaddress.ip_address(ip).version == 4]


def _reasons(choice: InterfaceChoice) -> str:
    return "; ".join(map(str, choice.left_out)) or "this device has no interface"
