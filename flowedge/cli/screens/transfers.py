"""Bars of weights that are being fetched: one a device, with rate and time left."""

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

from flowedge.client.transfer import OnTransfer, Transfer

_LINE_S = 5.0  # between two lines of a device, where there is no terminal to draw bars on


class TransferBars:
    """Draws on a terminal; elsewhere writes a line for each device now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}

    def show(self, device: str, transfer: Transfer) -> None:
        """How far a device is."""
        if not self._console.is_terminal:
            self._write(device, transfer)
            return
        if device not in self._tasks:
            if not self._tasks:
                self._bars.start()
            self._tasks[device] = self._bars.add_task(device, total=transfer.total)
        self._bars.update(self._tasks[device], completed=transfer.done, total=transfer.total)
        if transfer.done >= transfer.total:
            self._bars.remove_task(self._tasks.pop(device))
            if not self._tasks:
                self._bars.stop()

    def stop(self) -> None:
        """Take the bars away."""
        if self._tasks:
            self._bars.stop()

    def _write(self, device: str, transfer: Transfer) -> None:
        now = time.monotonic()
        if now - self._told.setdefault(device, now) < _LINE_S:
            return
        self._told[device] = now
        left = "" if transfer.left_s is None else f", {transfer.left_s:.0f} s left"
        self._console.print(
            f"{device}: {transfer.done / 2**20:.0f} of {transfer.total / 2**20:.0f} MiB, "
            f"{transfer.rate / 2**20:.1f} MiB/s{left}",
            markup=False,
            soft_wrap=True,
        )


@contextmanager
def transfer_bars(console: Console | None = None) -> Iterator[OnTransfer]:
    """What shows transfers until the context ends: on standard error when no console is given."""
    bars = TransferBars(console or Console(stderr=True, highlight=False))
    try:
        yield bars.show
    finally:
        bars.stop()
