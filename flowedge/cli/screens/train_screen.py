"""`flowedge train-drafter`: the training, with its progress for people. Imports torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, takewhile
from pathlib import Path
from time import monotonic

import torch
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from flowedge.cli.output import say, warn
from flowedge.cli.pipelines.stages import StagesRequest, open_stages
from flowedge.cli.screens.tables import error_console
from flowedge.cli.screens.tables import line as shown
from flowedge.client.assembly import OnProgress
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.models.taps import Taps
from flowedge.training.cluster_target import open_cluster_target
from flowedge.training.interruption import Interruption
from flowedge.training.local_target import open_local_target
from flowedge.training.run import TrainingObserver, train_drafter
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import TrainingProgress
from flowedge.training.target import OpenTarget, TrainingTarget, check_device

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
        self._phase = ("", 0.0)  # and when it began, of what is not training
        self.saved_step: int | None = None

    def advance(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        if what != self._phase[0]:
            self._phase = (what, now)
        left_s = (now - self._phase[1]) * (total - done) / done if done and now > self._phase[1] else None
        self.show(what, done, total, [f"{done}/{total}"], left_s)

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
        self.show("training", share, 1.0, details, progress.spent_s * (1 - share) / share if share else None)

    def saved(self, step: int) -> None:
        self.saved_step = step

    @abstractmethod
    def show(
        self, what: str, done: float, total: float, details: Sequence[str], left_s: float | None
    ) -> None:
        """Show that `done` of `total` of a phase is finished.

        Args:
            details: the most important first.
            left_s: seconds to the end of the phase; None where nobody knows.
        """


class _Bar(TrainScreen):
    def __init__(self, bar: RichProgress) -> None:
        super().__init__()
        self._bar = bar
        self._task: TaskID | None = None
        self._what = ""

    def say(self, line: str) -> None:
        self._bar.console.print(shown(line), soft_wrap=True)

    def show(
        self, what: str, done: float, total: float, details: Sequence[str], left_s: float | None
    ) -> None:
        left = "" if left_s is None else f"{_duration(left_s)} left"
        fitting = takewhile(
            lambda text: len(text) <= self._bar.console.width - BESIDE_DETAIL,
            accumulate(details, "{}, {}".format),
        )
        *_, detail = ["", *fitting]
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total, detail=detail, left=left)
            self._what = what
        self._bar.update(self._task, total=total, completed=done, detail=detail, left=left)


class _TrainingLines(TrainScreen):
    """The first and the last step of each phase, and a step every LINE_EVERY_S seconds, a line each."""

    def __init__(self) -> None:
        super().__init__()
        self._what, self._shown_s = "", 0.0

    def say(self, line: str) -> None:
        warn(line)

    def show(
        self, what: str, done: float, total: float, details: Sequence[str], left_s: float | None
    ) -> None:
        now = monotonic()
        if what != self._what:
            self._what = what
        elif done < total and now - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = now
        left = "" if left_s is None or done >= total else f", {_duration(left_s)} left"
        warn(f"{what}: {100 * done / total:.0f} %, {', '.join(details)}{left}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


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
        TextColumn("{task.fields[left]}"),
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


def train_and_report(
    model: str,
    data: Path,
    out: Path,
    settings: TrainingSettings,
    agents: StagesRequest,
    device: str,
    *,
    restart: bool,
) -> None:
    """Train a head and print where it is and how well it drafts.

    Args:
        agents: where the target's layers are; in this process if no agents are asked for.
        device: "cpu" or "cuda", of the head and of layers in this process.
        restart: whether to begin anew instead of going on after an interruption.
    """
    interruption = Interruption()
    with interruption.handled(), train_screen(out) as screen:
        opener = _open_target(agents, device, lambda name, doing: screen.say(f"{name}: {doing}"))
        acceptance = train_drafter(
            model,
            data,
            out,
            settings,
            screen,
            open_target=opener,
            restart=restart,
            deferred=interruption.deferred,
        )
    say(f"the head is in {out}: give it as --drafter {out}")
    if acceptance.cycles:
        say(
            f"acceptance length {acceptance.length:.2f} tokens a draft-verify cycle "
            f"({acceptance.tokens} tokens, {acceptance.prompts} held-out prompts)"
            + (f"; lookup (ngram) reaches {acceptance.lookup:.2f}" if acceptance.lookup else "")
        )
        if acceptance.by_depth:
            say("accepted by depth: " + ", ".join(f"{share:.0%}" for share in acceptance.by_depth))
        if not acceptance.is_of_use:
            warn(
                "the head is no better than lookup (--drafter ngram), which needs no weights: 1.00 is a head "
                "that is never right. Train it longer, or on more texts of the model's own "
                "(--self-generate)"
            )
    else:
        say("the head is not evaluated: no prompt was held out that fits the context")


def _open_target(agents: StagesRequest, device_name: str, report: OnProgress) -> OpenTarget:
    device = check_device(device_name)

    @contextmanager
    def opener(source: str, quant: str, dtype: torch.dtype, taps: Taps) -> Iterator[TrainingTarget]:
        if not agents.any_given:
            with open_local_target(source, quant, dtype, taps, device) as target:
                yield target
            return
        with (
            open_stages(agents, report) as stages,
            open_cluster_target(
                source, quant, dtype, taps, stages=stages, split=agents.split, report=report, device=device
            ) as target,
        ):
            yield target

    return opener
