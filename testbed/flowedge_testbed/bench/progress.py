"""The progress of a benchmark on standard error: a bar with the time left, or lines in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from flowedge.core.plain_text import visible

TOLD = 10  # lines about the runs, where there is no bar


class BenchProgress:
    """A listener to the progress of a benchmark. This base class ignores everything."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def begin(self, total: int, finished: int) -> None:
        """Take notice of the number of runs, and of the number that earlier commands have finished."""

    def advance(self, runs: int) -> None:
        """Take notice that `runs` more runs have ended."""


class _Lines(BenchProgress):
    """Lines alone, so that a file has no bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._ended = self._told = 0

    def say(self, line: str) -> None:
        self._console.print(visible(line), highlight=False, markup=False, soft_wrap=True)

    def begin(self, total: int, finished: int) -> None:
        if finished:
            self.say(f"{finished} of {total} runs were finished before")
        self._total, self._ended, self._told = total - finished, 0, 0
        if self._total:
            self.say(f"{self._total} runs begin")

    def advance(self, runs: int) -> None:
        self._ended += runs
        tenth = TOLD * self._ended // self._total
        if tenth > self._told:
            self._told = tenth
            self.say(f"{self._ended} of {self._total} runs have ended")


class _Bar(_Lines):
    """A bar, above which the lines are."""

    def __init__(self, bar: RichProgress) -> None:
        super().__init__(bar.console)
        self._bar = bar

    def begin(self, total: int, finished: int) -> None:
        if finished:
            self.say(f"{finished} of {total} runs were finished before")
        # The time left is estimated from the runs of this command alone.
        if total > finished:
            self._task = self._bar.add_task("runs", total=total - finished)

    def advance(self, runs: int) -> None:
        self._bar.advance(self._task, runs)


@contextmanager
def bench_progress() -> Iterator[BenchProgress]:
    """Show the progress of a benchmark."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console) as bar:
        bar.console.print("loading the models and the prompts")
        yield _Bar(bar)
