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
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from flowedge.cli.screens.tables import MOST_OF_CELL, error_console, line, shorten_middle
from flowedge.core.plain_text import visible_field
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer

_NARROW, _MEDIUM, _WIDE = 50, 72, 110  # columns of a terminal from which on there is more room
_LINE_S = 5.0  # between two lines of a device where there is no terminal


def bar_columns(width: int) -> tuple[list[ProgressColumn], int]:
    """Return the columns of a device's bar in `width` columns of a terminal, and those left for its name."""
    bar = 40 if width >= _WIDE else 10
    columns: list[tuple[ProgressColumn, int]] = [(DownloadColumn(binary_units=True), 15)]
    if width >= _NARROW:
        columns.insert(0, (BarColumn(bar), bar))
    if width >= _MEDIUM:
        columns.append((TransferSpeedColumn(), 11))
    columns.append((TimeRemainingColumn(), 7))
    name = width - sum(taken + 1 for _, taken in columns)
    return [TextColumn("{task.description}", markup=False), *(column for column, _ in columns)], max(name, 1)


class TransferBars:
    """Draws bars on a terminal; elsewhere writes a line for each device every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns, self._name_width = bar_columns(console.width)
        self._bars = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._written: dict[str, float] = {}

    def show(self, device: str, progress: FetchProgress) -> None:
        if not self._console.is_terminal:
            self._write(device, progress)
            return
        if device not in self._tasks:
            if not self._tasks:
                self._bars.start()
            name = shorten_middle(visible_field(device, MOST_OF_CELL), self._name_width)
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
