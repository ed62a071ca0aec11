"""The agents of `flowedge devices`: rows of values for programs, and a table for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowedge.cli.screens.tables import Column, ColumnKind, PlainTable, plain_table
from flowedge.client.survey import SurveyedAgent, duplicates
from flowedge.core.plain_text import counted
from flowedge.discovery.advertised_device import AdvertisedDevice

if TYPE_CHECKING:
    from flowedge.planning.measuring.link_rates import LinkRate

Row = dict[str, Any]
_COLUMNS = (
    Column("name"),
    Column("kind", drop=4),
    Column("address", ColumnKind.WHOLE),
    Column("compute", ColumnKind.WHOLE, drop=3),
    Column("memory free", ColumnKind.WHOLE, drop=1),
    Column("role", ColumnKind.WHOLE),
    Column("block"),
    Column("version", ColumnKind.WHOLE, drop=5),
    Column("round trip", ColumnKind.WHOLE, drop=2),
)
_CERTIFICATE = Column("certificate", ColumnKind.WHOLE, drop=6)
_LINK = Column("link", ColumnKind.PROSE)
_REMARKS = Column("", ColumnKind.PROSE)


def device_rows(agents: Sequence[SurveyedAgent], rates: Mapping[str, LinkRate] | None = None) -> list[Row]:
    """Return a row for each agent; sizes in bytes, times in seconds, unknown values are left out.

    rates: the measured links, by the address of the sender.
    """
    shared = _duplicate_marks(agents)
    return [_row(agent, shared.get(agent.address, []), rates) for agent in agents]


def device_table(rows: Sequence[Row]) -> PlainTable:
    """Return a table with a line for each agent.

    It has a column of the roles in certificates if there are certificates, and of links if links were
    measured.
    """
    with_links, certified = any("link" in row for row in rows), any(row.get("certified_role") for row in rows)
    more = [column for column, shown in ((_CERTIFICATE, certified), (_LINK, with_links)) if shown]
    table = plain_table(*_COLUMNS, *more, _REMARKS)
    for row in rows:
        cells = [row.get("name", "?"), row.get("kind", "?"), _address(row), _compute(row), _memory(row)]
        cells += [row.get("role", "?"), _block(row), row.get("version", "?"), _round_trip(row)]
        cells += [row.get("certified_role", "")] if certified else []
        cells += [_link(row["link"]) if "link" in row else ""] if with_links else []
        table.add_row(*map(str, [*cells, _remarks(row)]), style=_style(row))
    return table


def _row(agent: SurveyedAgent, shared: list[str], rates: Mapping[str, LinkRate] | None) -> Row:
    row: Row = {} if agent.advertised is None else _advertised(agent.advertised)
    if agent.answer is not None:
        row |= agent.answer.device.content()
        row["round_trip_s"] = agent.answer.round_trip
    row |= {
        "address": agent.address,
        "addresses": list(agent.addresses),
        "stale": agent.stale,
        "duplicates": shared,
        "problem": agent.problem,
    }
    if rates is not None and agent.address in rates:
        row["link"] = dataclasses.asdict(rates[agent.address])
    return row


def _advertised(device: AdvertisedDevice) -> Row:
    names = ("id", "name", "kind", "memory_total", "protocol_version", "version", "instance")
    return {name: getattr(device, name) for name in names} | {"compute": {"device": device.compute}}


def _duplicate_marks(agents: Sequence[SurveyedAgent]) -> dict[str, list[str]]:
    """Return, by address, what an agent shares with other agents."""
    marks: dict[str, list[str]] = {}
    known = [agent for agent in agents if agent.id]
    for duplicate in duplicates(known):
        for agent in known:
            if getattr(agent, duplicate.what) == duplicate.value:
                own = f"{agent.name} ({agent.address})"
                others = " and ".join(device for device in duplicate.devices if device != own)
                marks.setdefault(agent.address, []).append(f"same {duplicate.what} as {others}")
    return marks


def _address(row: Row) -> str:
    others = len(row["addresses"]) - 1
    return f"{row['address']} (+{others})" if others else str(row["address"])


def _compute(row: Row) -> str:
    """Return the compute device, and the dtype of the role if there is one."""
    compute = row.get("compute") or {}
    return " ".join(filter(None, (compute.get("device"), row.get("dtype")))) or "?"


def _memory(row: Row) -> str:
    if "memory_total" not in row:
        return "?"
    total = f"{row['memory_total'] / 2**30:.1f} GiB"
    available = row.get("memory_available")
    return total if available is None else f"{available / 2**30:.1f} of {total}"


def _block(row: Row) -> str:
    start, stop = row.get("layers", (0, 0))
    if stop > start:
        return f"{row['model']} [{start}, {stop})"
    if row.get("stage_addresses"):
        return f"{row['model']} over {counted(len(row['stage_addresses']), 'stage')}"
    return ""


def _round_trip(row: Row) -> str:
    seconds = row.get("round_trip_s")
    return "?" if seconds is None else f"{1000 * seconds:.1f} ms"


def _link(link: dict[str, Any]) -> str:
    if link["bits_per_s"] is None:
        return str(link["problem"])
    return f"{link['bits_per_s'] / 1e6:.0f} Mbit/s to {link['to']}"


def _remarks(row: Row) -> str:
    stale = ["stale: no sign of life"] if row["stale"] else []
    slowed = [f"slowed down by {row['throttled']}"] if row.get("throttled") else []
    unused = (row.get("compute") or {}).get("reason")
    return "; ".join(filter(None, [*stale, *row["duplicates"], row["problem"], *slowed, unused]))


def _style(row: Row) -> str:
    if row["stale"]:
        return "dim"
    return "yellow" if row["problem"] or row["duplicates"] or row.get("throttled") else ""
