"""Resolving of instances: from the name of an announced agent to its addresses and fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from zeroconf import DNSQuestionType, IPVersion, Zeroconf
from zeroconf.asyncio import AsyncServiceInfo
from zeroconf.const import _CLASS_IN, _TYPE_SRV

from flowedge.discovery.parsing import RawAnnouncement, name_fault, shown_name
from flowedge.discovery.settings import DiscoverySettings
from flowedge.network.log_rate import LimitedLog

MAX_AT_ONCE = 16  # names that are asked for on the network
MAX_WAITING = 256  # names that wait to be asked for
_RESOLVE_MS = 3000

OnResolved = Callable[[RawAnnouncement, float], None]
"""Called with an announcement, and the seconds for which it is valid."""


class InstanceResolver:
    """Resolves names of instances: at once if all their records were heard, otherwise by asking.

    The records of an agent come together. So names with missing records, of which anybody can send any
    number, do not delay agents.
    """

    def __init__(
        self, zeroconf: Zeroconf, settings: DiscoverySettings, on_resolved: OnResolved, ignored: LimitedLog
    ) -> None:
        """settings: its `ttl_s` is how long an announcement is valid that does not tell."""
        self._zeroconf, self._ttl_s = zeroconf, settings.ttl_s
        self._service_type = settings.service_type
        self._on_resolved, self._ignored = on_resolved, ignored
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by name
        self._waiting: dict[str, None] = {}  # an ordered set of names

    def resolve(self, name: str) -> None:
        """Resolve a name soon; never raises."""
        fault = name_fault(name, self._service_type)
        if fault is not None:
            self._ignored.add(f"the announcement {shown_name(name)} is ignored: {fault}")
            return
        try:
            info = AsyncServiceInfo(self._service_type, name)
            if info.load_from_cache(self._zeroconf):
                self._report(info)
                return
        except Exception as error:  # noqa: BLE001 (records of strangers, read by another library)
            self._unreadable(name, error)
            return
        if name in self._tasks or name in self._waiting:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._ignored.add(f"the announcement {shown_name(name)} is ignored: too many are incomplete")
            return
        self._waiting[name] = None
        self._start_waiting()

    async def close(self) -> None:
        """End all requests."""
        self._waiting.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._tasks) < MAX_AT_ONCE:
            name = next(iter(self._waiting))
            del self._waiting[name]
            self._tasks[name] = asyncio.ensure_future(self._ask(name))

    async def _ask(self, name: str) -> None:
        try:
            info = AsyncServiceInfo(self._service_type, name)
            if await info.async_request(self._zeroconf, _RESOLVE_MS, question_type=DNSQuestionType.QM):
                self._report(info)
        except Exception as error:  # noqa: BLE001 (records of strangers, read by another library)
            self._unreadable(name, error)
        finally:
            del self._tasks[name]
            self._start_waiting()

    def _report(self, info: AsyncServiceInfo) -> None:
        service = self._zeroconf.cache.get_by_details(info.name, _TYPE_SRV, _CLASS_IN)
        ttl_s = float(service.ttl) if service is not None else self._ttl_s
        hosts = info.parsed_scoped_addresses(IPVersion.All)
        self._on_resolved(RawAnnouncement(info.name, info.port, hosts, info.text or b""), ttl_s)

    def _unreadable(self, name: str, error: Exception) -> None:
        self._ignored.add(f"the announcement {shown_name(name)} cannot be read", error=error)
