"""Listeners for mDNS records. zeroconf calls them for every packet, so none of them raises."""

from __future__ import annotations

import logging
from typing import Protocol

from zeroconf import RecordUpdate, RecordUpdateListener, Zeroconf
from zeroconf._dns import DNSAddress, DNSNsec, DNSPointer, DNSRecord, DNSService, DNSText

from flowedge.network.log_rate import LimitedLog

MAX_CACHED_BYTES = 4 << 20
_RECORD_BYTES = 512  # that a record takes beside its content
_NUMBER_BYTES = 40  # of an integer in a list
_MAX_OF_HOST = 16  # agents of one host that are resolved again when the host's addresses change
_log = logging.getLogger(__name__)


class AnnouncementSink(Protocol):
    """Takes in what the records tell of instances, by name."""

    def knows(self, name: str) -> bool: ...
    def came(self, name: str) -> None: ...
    def refreshed(self, name: str, ttl_s: float) -> None: ...
    def left(self, name: str) -> None: ...


class AnnouncementListener(RecordUpdateListener):
    """Tells a sink of the instances that records are about, also of records that repeat what is known."""

    def __init__(self, sink: AnnouncementSink, service_type: str, ignored: LimitedLog) -> None:
        self._sink, self._service_type, self._ignored = sink, service_type, ignored
        self._came: dict[str, None] = {}  # an ordered set of names, until the cache has their records

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        try:
            for update in records:
                self._take(zc, now, update)
        except Exception as error:  # noqa: BLE001 (zeroconf would not cache the packet)
            self._ignored.add("records from the network cannot be read", error=error)

    def async_update_records_complete(self) -> None:
        came, self._came = self._came, {}
        try:
            for name in came:
                self._sink.came(name)
        except Exception as error:  # noqa: BLE001 (zeroconf would not tell its other listeners)
            self._ignored.add("announcements from the network cannot be read", error=error)

    def _take(self, zc: Zeroconf, now: float, update: RecordUpdate) -> None:
        record, is_new = update.new, update.old is None
        if isinstance(record, DNSPointer) and record.name.lower() == self._service_type:
            self._heard(record.alias, now, record, is_new=False)
        elif isinstance(record, DNSService) and record.name.endswith(f".{self._service_type}"):
            self._heard(record.name, now, record, is_new=is_new)
            if not record.is_expired(now):
                self._sink.refreshed(record.name, float(record.ttl))
        elif isinstance(record, DNSText) and is_new and self._sink.knows(record.name):
            self._came[record.name] = None
        elif isinstance(record, DNSAddress) and is_new:
            for service in zc.cache.async_entries_with_server(record.name)[:_MAX_OF_HOST]:
                if self._sink.knows(service.name):
                    self._came[service.name] = None

    def _heard(self, name: str, now: float, record: DNSPointer | DNSService, *, is_new: bool) -> None:
        if record.is_expired(now):
            if record.ttl == 0:  # a goodbye; of others zeroconf tells when it empties its cache of them
                self._sink.left(name)
        elif is_new or not self._sink.knows(name):
            self._came[name] = None


def _size(record: DNSRecord) -> int:
    """Return about how many bytes a record takes in memory; an NSEC record of 9 kB takes megabytes."""
    content = 0
    if isinstance(record, DNSText):
        content = len(record.text)
    elif isinstance(record, DNSNsec):
        content = _NUMBER_BYTES * len(record.rdtypes)
    return _RECORD_BYTES + 2 * len(record.name) + content


class CacheLimit(RecordUpdateListener):
    """Empties zeroconf's cache when the records in it take too much memory.

    zeroconf bounds the number of its records; a record has up to 9 kB. Agents repeat their records when they
    are asked, so an emptied cache costs a question.
    """

    def __init__(self, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._most = most_bytes
        self._added = 0  # bytes since the cache was empty
        self._zeroconf: Zeroconf | None = None

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:  # noqa: ARG002
        self._zeroconf = zc
        for update in records:
            if update.old is None:
                self._added += _size(update.new)

    def async_update_records_complete(self) -> None:
        if self._added <= self._most or self._zeroconf is None:
            return
        self._added = 0
        try:
            self._zeroconf.cache.async_expire(float("inf"))
        except Exception:  # noqa: BLE001 (zeroconf would not tell its other listeners)
            _log.exception("the cache of mDNS records could not be emptied")
