"""A progress bar of a benchmark, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from flowedge.core.visible_text import visible
from flowedge_testbed.bench import BenchProgress


class _Bar(BenchProgress):
    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("loading", total=None)

    def say(self, line: str) -> None:
        self._bar.console.print(visible(line), highlight=False, markup=False)

    def begin(self, total: int, finished: int) -> None:
        if finished:
            self.say(f"{finished} of {total} runs were finished before")
        # The time left is estimated from the runs of this command alone.
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task("runs", total=total - finished)

    def advance(self, runs: int) -> None:
        self._bar.advance(self._task, runs)


@contextmanager
def bench_progress() -> Iterator[BenchProgress]:
    """Show a progress bar with the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar)
