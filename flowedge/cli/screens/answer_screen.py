"""Progress, summaries and verdicts on standard error; only the text of answers is on standard output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import median

from flowedge.cli.output import repeated, warn
from flowedge.cli.prompt_answer import PromptAnswer, served_s, sum_up
from flowedge.cli.screens.tables import Column, ColumnKind, PlainTable, error_console, line, plain_table
from flowedge.cli.screens.transfers import transfer_bars
from flowedge.client import Recovery
from flowedge.core.request import drafting_gain
from flowedge.engine.statistics import RequestStatistics, StageUse
from flowedge.weights.fetch.progress import OnTransfer

_SHOWN_PROMPT = 100  # characters
# The columns about a device's work, and the order in which they are left out (see Column.drop).
_WORK = (("use", 0), ("rows computed", 2), ("trimmed", 4), ("wasted", 3), ("MB sent", 1))


class AnswerScreen:
    """Writes for people; the text of answers goes to standard output elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        """quiet: show nothing but a verdict that is not good."""
        self._quiet = quiet
        self._console = error_console()
        self._console.quiet = quiet

    def _print(self, text: str, style: str) -> None:
        """Print a line, broken between words on a terminal only: a program that reads it wants it whole."""
        self._console.print(line(text, style), soft_wrap=not self._console.is_terminal)

    def progress(self, device: str, message: str) -> None:
        self._print(f"{device}: {message}", "dim")

    def note(self, message: str) -> None:
        """Show a choice that the command has made for the user."""
        self._print(message, "yellow")

    def transfers(self) -> AbstractContextManager[OnTransfer]:
        """Show how far devices are with fetching their weights, while the context lasts."""
        return transfer_bars(self._console)

    def working(self, what: str, progress: Callable[[], str] = lambda: "") -> AbstractContextManager[None]:
        """Say every few seconds that something goes on, and how far it is, while the context lasts."""

        def say_again(seconds: float) -> None:
            far = ", ".join(filter(None, (f"{seconds:.0f} s so far", progress())))
            self._print(f"{what}: {far}", "dim")

        return repeated(say_again)

    def announce(self, number: int, count: int, prompt: str) -> None:
        shown = " ".join(prompt.split())
        if len(shown) > _SHOWN_PROMPT:
            shown = shown[: _SHOWN_PROMPT - 1] + "…"
        place = f"[{number}/{count}] " if count > 1 else ""
        self._print(f"{place}> {shown}", "bold")

    def show_queue_position(self, position: int, expected_s: float) -> None:
        """Show the place of a request among those that wait for room."""
        self._print(f"waiting for room: place {position}, about {expected_s:.0f} s", "dim")

    def show_pause(self, seconds: float) -> None:
        """Show when a draft node without room is asked again."""
        self._print(f"the draft node has no room; it is asked again in {seconds:.0f} s", "dim")

    def show_recovering(self, lost: Recovery | None) -> None:
        """Show that a device was lost, or, with None, that the answer goes on."""
        self._print(f"{lost}; the answer waits to go on" if lost else "the answer goes on", "dim")

    def show_line(self, answer: PromptAnswer) -> None:
        """Show the statistics of an answer in one line."""
        self._print(_line(answer), "cyan")

    def show_answer(self, answer: PromptAnswer, *, several: bool) -> None:
        """Show the statistics of an answer, with a table of devices unless there are several answers."""
        self.show_line(answer)
        if answer.verdict is not None and (several or not answer.verdict.passed):
            self._print(answer.verdict.line(), "dim")
        if not several:
            statistics = answer.statistics
            self._console.print(_devices_table([answer], statistics.total_s - statistics.queue_s))

    def show_summary(self, answers: Sequence[PromptAnswer]) -> None:
        """Show several answers together, and the line of the check."""
        if len(answers) > 1:
            tokens = sum(len(answer.token_ids) for answer in answers)
            seconds = served_s(answers)
            rate = f", {tokens / seconds:.1f} tokens/s prefill included" if seconds > 0 else ""
            self._print(f"{len(answers)} answers, {tokens} tokens{rate}{_medians(answers)}", "bold cyan")
            self._console.print(_devices_table(answers, seconds))
        verdicts = [answer.verdict for answer in answers if answer.verdict is not None]
        if verdicts:
            whole = sum_up(verdicts)
            if not (self._quiet and whole.passed):
                warn(whole.line())


def _line(answer: PromptAnswer) -> str:
    statistics, counters = answer.statistics, answer.statistics.counters
    parts = [
        f"{len(answer.token_ids)} tokens ({answer.finish_reason})",
        f"{statistics.tokens_per_s:.1f} tokens/s",
        f"first token after {statistics.ttft_s:.2f} s",
    ]
    if statistics.queue_s:
        parts.append(f"waited {statistics.queue_s:.2f} s")
    if counters.draft_layers:
        gain = drafting_gain(
            statistics.tokens_per_s,
            counters.plain_tokens_per_s,
            counters.accepted_per_round,
            counters.accepted_per_segment,
        )
        parts += [gain] if gain else []
    if counters.rollbacks:
        parts.append(f"rolled back {'+'.join(map(str, counters.rollbacks))} times")
    if counters.reused_rows:
        parts.append(f"{counters.reused_rows} of {statistics.prompt_tokens} prompt tokens reused")
    parts.append(f"seed {answer.seed}")
    return ", ".join(parts)


def _medians(answers: Sequence[PromptAnswer]) -> str:
    first = median(answer.statistics.ttft_s for answer in answers)
    between = [seconds for answer in answers for seconds in answer.statistics.itl_s]
    gap = f", {1000 * median(between):.0f} ms between tokens" if between else ""
    return f"; medians: first token after {first:.2f} s{gap}"


def _devices_table(answers: Sequence[PromptAnswer], seconds: float) -> PlainTable:
    """Return the work of each device for answers that took so many seconds together."""
    table = plain_table(
        "device", *(Column(title, ColumnKind.WHOLE, right=True, drop=drop) for title, drop in _WORK)
    )
    for index, device in enumerate(_devices(answers[-1].statistics)):
        name = device.report.device
        reports = [_devices(answer.statistics)[index].report for answer in answers]
        busy_s = sum(report.busy_s for report in reports)
        use = min(busy_s / seconds, 1.0) if seconds > 0 else 0.0
        rows = ["rows_computed", "rows_trimmed", "rows_wasted"] if index else []
        cells = [str(sum(getattr(report, row) for report in reports)) for row in rows] or ["", "", ""]
        sent = sum(answer.statistics.link_bytes.get(name, 0) for answer in answers)
        table.add_row(name, f"{use:.0%}", *cells, f"{sent / 1e6:.2f}")
    return table


def _devices(statistics: RequestStatistics) -> list[StageUse]:
    return [statistics.draft_node, *statistics.stages, *statistics.middles]
