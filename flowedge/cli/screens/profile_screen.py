"""What is being measured, and the profiles that were written, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flowedge.cli.output import say
from flowedge.cli.screens.tables import (
    Column,
    ColumnKind,
    PlainTable,
    error_console,
    line,
    output_console,
    plain_table,
)
from flowedge.client.assembly import OnProgress
from flowedge.planning.measuring.run import Profiled
from flowedge.planning.profile.device import MeasuredQuantisations
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measured_profiles import FittedDevice

LAYER_BY_LAYER = "layer by layer"  # without the CUDA graphs that the agent uses
_SHOWN_ROWS = (1, 16, 128)
_SHOWN_NODES = 10


@contextmanager
def profile_progress() -> Iterator[OnProgress]:
    """Show what is measured now on standard error; where that is no terminal, a line for each device."""
    console = error_console()
    latest = ""

    def show(device: str, text: str) -> None:
        nonlocal latest
        if device != latest and not console.is_terminal:
            console.print(line(f"{device}: {text}"))
        latest = device
        status.update(line(f"{device}: {text}"))

    with console.status("asking the agents") as status:
        yield show


def show_profiles(profiled: Profiled) -> None:
    """Print tables of devices and links, and the path of the scenario."""
    console = output_console()
    console.print(_devices_table(profiled.devices))
    for device in profiled.devices:
        for reason in device.reasons:
            console.print(line(f"{device.profile.title}: {reason}"), soft_wrap=True)
    for device in profiled.devices:
        if device.profile.quantised is not None:
            measured = device.profile.quantised
            by = f"by the number of rows in {measured.dtype}"
            console.print(line(f"{device.profile.title}: ms of a layer of width {measured.hidden}, {by}"))
            console.print(_quantised_table(measured))
    if profiled.links:
        console.print(_links_table(profiled.links))
    say(f"{profiled.scenario}")


def _devices_table(devices: tuple[FittedDevice, ...]) -> PlainTable:
    shown = [f"layer, {rows} rows" if rows > 1 else "layer, 1 row" for rows in _SHOWN_ROWS]
    columns = [
        "memory GiB",
        "GB/s",
        "TFLOPS",
        "overhead ms",
        "4-bit Gweights/s",
        "fit",
        *shown,
        f"draft layer, {_SHOWN_NODES} nodes",
    ]
    table = plain_table("device", right=columns)
    for device in devices:
        profile, measured = device.profile, device.profile.measured
        cells = [
            f"{profile.memory_gib:.1f}",
            device.constant("memory_bandwidth_gb_s"),
            device.constant("tflops"),
            device.constant("layer_overhead_ms"),
            device.constant("dequantise_gweights_s"),
            f"±{device.roofline.error:.0%}",
        ]
        cells += _layer_cells({} if measured is None else measured.layer_ms)
        draft = measured.draft if measured is not None else None
        grown = None if draft is None else draft.grow_ms.get(_SHOWN_NODES)
        cells.append("not measured" if grown is None else f"{grown:.3g} ms")
        table.add_row(profile.title, *cells)
        if measured is not None and measured.layer_by_layer_ms is not None:
            table.add_row(LAYER_BY_LAYER, *[""] * 6, *_layer_cells(measured.layer_by_layer_ms), "")
    return table


def _layer_cells(layers: Mapping[int, float]) -> list[str]:
    return [f"{layers[rows]:.3g} ms" if rows in layers else "-" for rows in _SHOWN_ROWS]


def _quantised_table(measured: MeasuredQuantisations) -> PlainTable:
    counts = sorted({rows for table in measured.layer_ms.values() for rows in table})
    table = plain_table("quantisation", *(_rows_column(rows) for rows in counts))
    layer_by_layer = measured.layer_by_layer_ms or {}
    for quant, times in measured.layer_ms.items():
        table.add_row(quant, *(f"{times[rows]:.3g}" if rows in times else "-" for rows in counts))
        if quant in layer_by_layer:
            cells = (f"{layer_by_layer[quant][rows]:.3g}" for rows in sorted(layer_by_layer[quant]))
            table.add_row(f"{quant}, {LAYER_BY_LAYER}", *cells)
    return table


def _rows_column(rows: int) -> Column:
    title = str(rows) if rows > 1 else "1 row"
    return Column(title, ColumnKind.WHOLE, right=True, drop=0 if rows in _SHOWN_ROWS else rows)


def _links_table(links: tuple[LinkProfile, ...]) -> PlainTable:
    table = plain_table("link", right=("Mbit/s", "latency ms"))
    for link in links:
        table.add_row(link.title, f"{link.mbps:.4g}", f"{link.latency_ms:.3g}")
    return table
