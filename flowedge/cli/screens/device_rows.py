"""What is shown of each agent: a row of plain values, the same for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from flowedge.client.survey import Surveyed
from flowedge.discovery.device_record import AdvertisedDevice
from flowedge.discovery.duplicates import duplicates
from flowedge.profiling.link_rates import LinkRate

Row = dict[str, Any]


def device_rows(agents: Sequence[Surveyed], rates: Mapping[str, LinkRate] | None = None) -> list[Row]:
    """A row an agent, in their order. Sizes are bytes, times seconds; what is not known is left out.

    rates: by address, where they were measured.
    """
    shared = _duplicate_marks(agents)
    return [_row(one, shared.get(one.address, []), rates) for one in agents]


def _row(one: Surveyed, shared: list[str], rates: Mapping[str, LinkRate] | None) -> Row:
    row: Row = {} if one.record is None else _advertised(one.record)
    if one.answer is not None:
        row |= dataclasses.asdict(one.answer.device)
        row["round_trip_s"] = one.answer.round_trip
    row |= {
        "address": one.address,
        "addresses": list(one.addresses),
        "stale": one.stale,
        "duplicates": shared,
        "problem": one.problem,
    }
    if rates is not None and one.address in rates:
        row["link"] = dataclasses.asdict(rates[one.address])
    return row


def _advertised(record: AdvertisedDevice) -> Row:
    return {
        "id": record.id,
        "name": record.name,
        "kind": record.kind,
        "memory_total": record.memory_total,
        "protocol_version": record.protocol_version,
        "version": record.version,
        "instance": record.instance,
    }


def _duplicate_marks(agents: Sequence[Surveyed]) -> dict[str, list[str]]:
    """By address, what an agent shares with which others."""
    marks: dict[str, list[str]] = {}
    known = [one for one in agents if one.id]
    for duplicate in duplicates(known):
        for one in known:
            if getattr(one, duplicate.what) == duplicate.value:
                own = f"{one.name} ({one.address})"
                others = " and ".join(device for device in duplicate.devices if device != own)
                marks.setdefault(one.address, []).append(f"same {duplicate.what} as {others}")
    return marks
