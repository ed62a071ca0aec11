"""Progress bars of weights that are being fetched: a bar for each device, with rate and remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from flowedge.cli.screens.tables import MOST_OF_CELL, error_console, line
from flowedge.core.visible_text import visible_field
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer

_LINE_S = 5.0  # between two lines of a device where there is no terminal


class TransferBars:
    """Draws bars on a terminal; elsewhere writes a line for each device every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._written: dict[str, float] = {}

    def show(self, device: str, progress: FetchProgress) -> None:
        if not self._console.is_terminal:
            self._write(device, progress)
            return
        if device not in self._tasks:
            if not self._tasks:
                self._bars.start()
            name = visible_field(device, MOST_OF_CELL)
            self._tasks[device] = self._bars.add_task(name, total=progress.total)
        self._bars.update(self._tasks[device], completed=progress.done, total=progress.total)
        if progress.done >= progress.total:
            self._bars.remove_task(self._tasks.pop(device))
            if not self._tasks:
                self._bars.stop()

    def stop(self) -> None:
        if self._tasks:
            self._bars.stop()

    def _write(self, device: str, progress: FetchProgress) -> None:
        now = time.monotonic()
        if now - self._written.setdefault(device, now) < _LINE_S:
            return
        self._written[device] = now
        left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
        self._console.print(
            line(
                f"{device}: {progress.done / 2**20:.0f} of {progress.total / 2**20:.0f} MiB, "
                f"{progress.rate / 2**20:.1f} MiB/s{left}"
            )
        )


@contextmanager
def transfer_bars(console: Console | None = None) -> Iterator[OnTransfer]:
    """Yield a function that shows transfers until the context ends, on standard error by default."""
    bars = TransferBars(console or error_console())
    try:
        yield bars.show
    finally:
        bars.stop()
