"""Progress of a training, for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from flowedge.cli.screens.tables import error_console
from flowedge.cli.screens.tables import line as shown
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.training.run import TrainingObserver
from flowedge.training.state import TrainingProgress


class _TrainScreen(TrainingObserver):
    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("loading", total=None, detail="")
        self._what = "loading"
        # Time and tokens at this run's first step, from which on the rate is measured.
        self._began: tuple[float, int] | None = None
        self.saved_step: int | None = None

    def say(self, line: str) -> None:
        self._bar.console.print(shown(line), soft_wrap=True)

    def advance(self, what: str, done: int, total: int) -> None:
        self._show(what, done, total, f"{done}/{total}")

    def step(self, progress: TrainingProgress, share: float) -> None:
        if self._began is None:
            self._began = (monotonic(), progress.tokens)
        began, tokens = self._began
        elapsed = monotonic() - began
        rate = f"{(progress.tokens - tokens) / elapsed:.0f} tok/s" if elapsed > 0 else ""
        # EAGLE-3 has no loss on features.
        losses = f"L1 {progress.feature_loss:.3f}, " if progress.feature_loss else ""
        losses += f"CE {progress.token_loss:.2f}, agreed {progress.agreement:.2f}"
        detail = f"step {progress.step}, {losses}, {rate}"
        self._show("training", share, 1.0, detail)

    def saved(self, step: int) -> None:
        self.saved_step = step

    def _show(self, what: str, done: float, total: float, detail: str) -> None:
        if what != self._what:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total, detail=detail)
            self._what = what
        self._bar.update(self._task, total=total, completed=done, detail=detail)


@contextmanager
def train_screen(out: Path) -> Iterator[TrainingObserver]:
    """Show a progress bar with losses and remaining time on standard error.

    When the training is interrupted or a device is lost, the latest saved step is shown.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[detail]}"),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    console = error_console()
    with RichProgress(*columns, console=console) as bar:
        screen = _TrainScreen(bar)
        try:
            yield screen
        except (KeyboardInterrupt, DeviceError, DeadlineError):
            step = screen.saved_step
            saved = "this run has trained nothing" if step is None else f"step {step} is saved in {out}"
            screen.say(
                f"stopped; {saved}. The same command goes on from there, with --restart it begins anew."
            )
            raise
