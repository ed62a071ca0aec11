"""What a person sees: progress and summaries on stderr, verdicts on stdout beside the text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowedge.cli.measured import DeviceWork, mean
from flowedge.cli.screens.transfers import transfer_bars

if TYPE_CHECKING:
    from flowedge.cli.answers import PromptAnswer
    from flowedge.client.transfer import OnTransfer

_SHOWN_PROMPT = 100  # characters


class AnswerScreen:
    """Writes for people; the text itself goes to stdout as it comes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    def progress(self, device: str, message: str) -> None:
        """What a device is doing."""
        self._console.print(Text(f"{device}: {message}", style="dim"), soft_wrap=True)

    def transfers(self) -> AbstractContextManager[OnTransfer]:
        """Shows how far devices are with fetching their weights."""
        return transfer_bars(self._console)

    def announce(self, number: int, count: int, prompt: str) -> None:
        """The prompt that is asked next."""
        shown = " ".join(prompt.split())
        if len(shown) > _SHOWN_PROMPT:
            shown = shown[: _SHOWN_PROMPT - 1] + "…"
        place = f"[{number}/{count}] " if count > 1 else ""
        self._console.print(Text(f"{place}> {shown}", style="bold"), soft_wrap=True)

    def show_answer(self, answer: PromptAnswer, *, several: bool) -> None:
        """What an answer took; in full when it is the only one."""
        self._console.print(Text(_line(answer), style="cyan"), soft_wrap=True)
        if answer.verdict is not None and (several or not answer.verdict.passed):
            self._console.print(Text(answer.verdict.line(), style="dim"), soft_wrap=True)
        if not several:
            self._console.print(_devices_table([answer]))

    def show_summary(self, answers: Sequence[PromptAnswer]) -> None:
        """All answers together, when there are several, and the line that says what the check found."""
        if len(answers) > 1:
            tokens = sum(len(answer.token_ids) for answer in answers)
            seconds = sum(answer.measured.total_s for answer in answers)
            rate = f", {tokens / seconds:.1f} tokens/s prefill included" if seconds > 0 else ""
            self._console.print(
                Text(f"{len(answers)} answers, {tokens} tokens{rate}", style="bold cyan"), soft_wrap=True
            )
            self._console.print(_devices_table(answers))
        verdicts = [answer.verdict for answer in answers if answer.verdict is not None]
        if verdicts:
            from flowedge.cli.check import sum_up  # noqa: PLC0415 (only with --check)

            print(sum_up(verdicts).line(), flush=True)


def _line(answer: PromptAnswer) -> str:
    measured = answer.measured
    parts = [
        f"{len(answer.token_ids)} tokens ({answer.finish_reason})",
        f"{measured.tokens_per_s:.1f} tokens/s",
        f"first token after {measured.ttft_s:.2f} s",
    ]
    if measured.draft_layers:
        parts.append(f"{mean(measured.accepted_per_round):.2f} tokens a round")
        parts.append(f"{mean(measured.accepted_per_segment):.2f} a segment")
    if measured.rollbacks:
        parts.append(f"rolled back {'+'.join(map(str, measured.rollbacks))} times")
    parts.append(f"seed {answer.seed}")
    return ", ".join(parts)


def _devices_table(answers: Sequence[PromptAnswer]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("device")
    for column in ("use", "rows computed", "trimmed", "wasted", "MB sent"):
        table.add_column(column, justify="right")
    last = answers[-1].measured
    for index, device in enumerate([last.draft_node, *last.stages, *last.middles]):
        works = [[a.measured.draft_node, *a.measured.stages, *a.measured.middles][index] for a in answers]
        sent = sum(a.measured.link_bytes.get(device.device, 0) for a in answers)
        rows = ["rows_computed", "rows_trimmed", "rows_wasted"] if index else []
        cells = [str(sum(getattr(work, name) for work in works)) for name in rows] or ["", "", ""]
        table.add_row(device.device, f"{_use(works, answers):.0%}", *cells, f"{sent / 1e6:.2f}")
    return table


def _use(works: Sequence[DeviceWork], answers: Sequence[PromptAnswer]) -> float:
    """Busy seconds over the seconds of all requests."""
    total = sum(answer.measured.total_s for answer in answers)
    return sum(work.busy_s for work in works) / total if total > 0 else 0.0
