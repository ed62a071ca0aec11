"""`flowedge devices`: what is on the network."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowedge.cli.trust import ClusterDir, Insecure, choose_identity

if TYPE_CHECKING:
    from flowedge.client import Device
    from flowedge.cluster.record import DeviceRecord

_PIPED_WIDTH = 200  # columns; a program that reads the table wants a device a line


def devices(
    timeout: Annotated[float, typer.Option(help="Seconds to look for devices.")] = 2.0,
    peers: Annotated[
        str | None, typer.Option(help="Ask these agents (host:port,...) instead of looking for some.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the agents on the network, what they have and what they do."""
    import asyncio  # noqa: PLC0415
    import json  # noqa: PLC0415

    from flowedge.cli.options import split_peers  # noqa: PLC0415
    from flowedge.cluster.discovery import discover  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    if peers is None:
        rows = _rows_of_records(asyncio.run(discover(timeout)))
    else:
        rows = [_row(address, None) for address in split_peers(peers)]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        typer.echo(
            f"No agent answered within {timeout:g} s. Start one with `flowedge agent`; where multicast "
            "does not pass, name the agents with --peers host:port,...",
            err=True,
        )


def _rows_of_records(records: list[DeviceRecord]) -> list[dict[str, Any]]:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda record: _row(record.address, record), records))


def _row(address: str, record: DeviceRecord | None) -> dict[str, Any]:
    """What an agent says when it is asked, or what its advertisement says when it does not answer."""
    from flowedge.client import Client  # noqa: PLC0415
    from flowedge.errors import FlowEdgeError  # noqa: PLC0415
    from flowedge.security.process import current  # noqa: PLC0415

    advertised = {} if record is None else _advertised(record)
    if record is not None and record.mismatch:
        return {**advertised, "problem": record.mismatch}
    try:
        foreign = None if record is None else current().foreign(record.name, record.cluster)
        if foreign is not None:
            return {**advertised, "problem": foreign}
        with Client(address, name=None if record is None else record.name) as client:
            return {**advertised, **_described(client.describe()), "address": address, "problem": None}
    except FlowEdgeError as error:
        return {"address": address, **advertised, "problem": str(error)}


def _advertised(record: DeviceRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "kind": record.kind,
        "address": record.address,
        "memory_total": record.memory_total,
        "version": record.version,
    }


def _described(device: Device) -> dict[str, Any]:
    import dataclasses  # noqa: PLC0415

    return dataclasses.asdict(device)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for column in ("name", "kind", "address", "memory free", "role", "block", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [row.get("name", "?"), row.get("kind", "?"), row["address"], _memory(row)]
        cells += [row.get("role", "?"), _block(row), row["problem"] or ""]
        table.add_row(*(escape(str(cell)) for cell in cells))
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    Console(width=width).print(table)


def _memory(row: dict[str, Any]) -> str:
    if "memory_total" not in row:
        return "?"
    total = f"{row['memory_total'] / 2**30:.1f} GiB"
    available = row.get("memory_available")
    return total if available is None else f"{available / 2**30:.1f} of {total}"


def _block(row: dict[str, Any]) -> str:
    start, stop = row.get("layers", (0, 0))
    if stop > start:
        return f"{row['model']} [{start}, {stop})"
    if row.get("stage_addresses"):
        return f"{row['model']} over {len(row['stage_addresses'])} stages"
    return ""
