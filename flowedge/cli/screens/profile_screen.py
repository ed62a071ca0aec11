"""What is being measured, and what came of it, for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.profile_documents import FittedDevice
from flowedge.profiling.run import Profiled, ProfileProgress

_SHOWN_ROWS = (1, 16, 128)
_SHOWN_NODES = 10
_PIPED_WIDTH = 200  # columns; a program that reads the table wants a device a line


class _ProfileScreen(ProfileProgress):
    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._device = ""

    def say(self, device: str, text: str) -> None:
        if device != self._device and not self._console.is_terminal:
            self._console.print(f"{device}: {text}", markup=False, highlight=False)
        self._device = device
        self._status.update(escape(f"{device}: {text}"))


@contextmanager
def profile_progress() -> Iterator[ProfileProgress]:
    """A line on standard error that says what is measured now; where that is no terminal, a line a device."""
    console = Console(stderr=True)
    with console.status("asking the agents") as status:
        yield _ProfileScreen(console, status)


def show_profiles(profiled: Profiled) -> None:
    """Tables of devices and links, and how to run the scenario, on standard output."""
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)
    console.print(_devices_table(profiled.devices))
    if profiled.links:
        console.print(_links_table(profiled.links))
    print(f"{profiled.scenario}")


def _devices_table(devices: tuple[FittedDevice, ...]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("device", overflow="fold")
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
    for column in columns:
        table.add_column(column, justify="right")
    for one in devices:
        profile, measured = one.profile, one.profile.measured
        four_bit = profile.dequantise_gweights_s
        cells = [
            f"{profile.memory_gib:.1f}",
            f"{profile.memory_bandwidth_gb_s:.3g}",
            f"{profile.tflops:.3g}",
            f"{profile.layer_overhead_ms:.3g}",
            "-" if four_bit is None else f"{four_bit:.3g}",
            f"±{one.roofline.error:.0%}",
        ]
        layers = measured.layer_ms if measured is not None else {}
        cells += [f"{layers[rows]:.3g} ms" if rows in layers else "-" for rows in _SHOWN_ROWS]
        draft = measured.draft if measured is not None else None
        grown = None if draft is None else draft.grow_ms.get(_SHOWN_NODES)
        cells.append("-" if grown is None else f"{grown:.3g} ms")
        table.add_row(escape(profile.title), *cells)
    return table


def _links_table(links: tuple[LinkProfile, ...]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("link", overflow="fold")
    table.add_column("Mbit/s", justify="right")
    table.add_column("latency ms", justify="right")
    for link in links:
        table.add_row(escape(link.title), f"{link.mbps:.4g}", f"{link.latency_ms:.3g}")
    return table
