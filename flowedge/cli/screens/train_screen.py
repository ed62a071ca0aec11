"""Progress of a training, for people."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, takewhile
from pathlib import Path
from time import monotonic

from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from flowedge.cli.output import warn
from flowedge.cli.screens.tables import error_console
from flowedge.cli.screens.tables import line as shown
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.training.run import TrainingObserver
from flowedge.training.state import TrainingProgress

LINE_EVERY_S = 30.0  # between two lines of progress where there is no terminal
BESIDE_DETAIL = 36  # columns of phase, bar and remaining time, with the spaces between them


class TrainScreen(TrainingObserver, ABC):
    """The progress of a training in words; subclasses show it.

    Attributes:
        saved_step: of the last checkpoint; None while there is none.
    """

    def __init__(self) -> None:
        # Time and tokens at this run's first step, from which on the rate is measured.
        self._began: tuple[float, int] | None = None
        self.saved_step: int | None = None

    def advance(self, what: str, done: int, total: int) -> None:
        self.show(what, done, total, [f"{done}/{total}"])

    def step(self, progress: TrainingProgress, share: float) -> None:
        if self._began is None:
            self._began = (monotonic(), progress.tokens)
        began, tokens = self._began
        elapsed = monotonic() - began
        details = [f"step {progress.step}", f"CE {progress.token_loss:.2f}"]
        if progress.tokens > tokens:
            details.append(f"{(progress.tokens - tokens) / elapsed:.0f} tok/s")
        details.append(f"agreed {progress.agreement:.2f}")
        if progress.feature_loss:  # EAGLE-3 has none
            details.append(f"L1 {progress.feature_loss:.3f}")
        self.show("training", share, 1.0, details)

    def saved(self, step: int) -> None:
        self.saved_step = step

    @abstractmethod
    def show(self, what: str, done: float, total: float, details: Sequence[str]) -> None:
        """Show that `done` of `total` of a phase is finished; the most important of the details is first."""


class _Bar(TrainScreen):
    def __init__(self, bar: RichProgress) -> None:
        super().__init__()
        self._bar = bar
        self._task: TaskID | None = None
        self._what = ""

    def say(self, line: str) -> None:
        self._bar.console.print(shown(line), soft_wrap=True)

    def show(self, what: str, done: float, total: float, details: Sequence[str]) -> None:
        fitting = takewhile(
            lambda text: len(text) <= self._bar.console.width - BESIDE_DETAIL,
            accumulate(details, "{}, {}".format),
        )
        *_, detail = ["", *fitting]
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total, detail=detail)
            self._what = what
        self._bar.update(self._task, total=total, completed=done, detail=detail)


class _TrainingLines(TrainScreen):
    """The first and the last step of each phase, and a step every LINE_EVERY_S seconds, a line each."""

    def __init__(self) -> None:
        super().__init__()
        self._what, self._first = "", 0.0
        self._began_s, self._shown_s = 0.0, 0.0

    def say(self, line: str) -> None:
        warn(line)

    def show(self, what: str, done: float, total: float, details: Sequence[str]) -> None:
        now = monotonic()
        if what != self._what:
            self._what, self._began_s, self._first = what, now, done
        elif done < total and now - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = now
        warn(f"{what}: {100 * done / total:.0f} %, {', '.join(details)}{self._left(now, done, total)}")

    def _left(self, now: float, done: float, total: float) -> str:
        """Return the remaining time, estimated from the part of the phase that this run has done."""
        if done <= self._first or done >= total:
            return ""
        seconds = (now - self._began_s) * (total - done) / (done - self._first)
        return f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"


@contextmanager
def train_screen(out: Path) -> Iterator[TrainingObserver]:
    """Show the progress on standard error: a bar on a terminal, lines elsewhere.

    When the training is interrupted or a device is lost, the latest saved step is shown.
    """
    console = error_console()
    if not console.is_terminal:
        with _stop_shown(_TrainingLines(), out) as screen:
            yield screen
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[detail]}"),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with RichProgress(*columns, console=console) as bar, _stop_shown(_Bar(bar), out) as screen:
        yield screen


@contextmanager
def _stop_shown(screen: TrainScreen, out: Path) -> Iterator[TrainScreen]:
    try:
        yield screen
    except (KeyboardInterrupt, DeviceError, DeadlineError):
        if screen.saved_step is None:
            screen.say(
                "stopped before the first step of this run. The same command goes on from the last saved "
                "step, if there is one; with --restart it begins anew."
            )
        else:
            screen.say(
                f"stopped; step {screen.saved_step} is saved in {out}. The same command continues from "
                "there, "
                "with --restart it starts over."
            )
        raise
