"""What records tell: a goodbye is one of a lifetime of 0; what has expired says nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from zeroconf import DNSPointer, DNSRecord, DNSService, RecordUpdate, current_time_millis
from zeroconf.const import _CLASS_IN, _TYPE_PTR, _TYPE_SRV

from flowedge.discovery.record_listeners import AnnouncementListener
from flowedge.network.log_rate import LimitedLog

SERVICE = "_flowedge._tcp.local."
NAME = f"kitchen.{SERVICE}"


class Heard:
    """An AnnouncementSink that knows one instance, and what it was told of it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def knows(self, name: str) -> bool:
        return name == NAME

    def came(self, name: str) -> None:
        self.told.append(f"came {name}")

    def refreshed(self, name: str, ttl_s: float) -> None:
        self.told.append(f"refreshed {name} {ttl_s:g}")

    def left(self, name: str) -> None:
        self.told.append(f"left {name}")


def pointer(ttl: int, created: float) -> DNSRecord:
    return DNSPointer(SERVICE, _TYPE_PTR, _CLASS_IN, ttl, NAME, created)


def service(ttl: int, created: float) -> DNSRecord:
    return DNSService(NAME, _TYPE_SRV, _CLASS_IN, ttl, 0, 0, 5001, "kitchen.local.", created)


@pytest.mark.parametrize("make", [pointer, service])
@pytest.mark.parametrize(("ttl", "age_ms", "left"), [(0, 0, True), (2, 3000, False), (2, 1000, False)])
def test_only_a_goodbye_says_that_a_device_has_left(make: Any, ttl: int, age_ms: int, left: bool) -> None:
    heard, now = Heard(), current_time_millis()
    ignored = LimitedLog(logging.getLogger(__name__), "ignored", lines=10)
    listener = AnnouncementListener(heard, SERVICE, ignored)
    record = make(ttl, now - age_ms)
    zeroconf: Any = None
    listener.async_update_records(zeroconf, now, [RecordUpdate(record, record)])
    listener.async_update_records_complete()
    assert (f"left {NAME}" in heard.told) == left
