"""Asking a draft node prompt by prompt, showing the text as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowedge.cli.measured import Measured
from flowedge.client import Client
from flowedge.client.request import GenerateOptions
from flowedge.core.sampling import SamplingParams

if TYPE_CHECKING:
    from flowedge.cli.check import Checker, Verdict
    from flowedge.cli.report import JsonReport
    from flowedge.cli.screens.answer_screen import AnswerScreen


@dataclass(frozen=True)
class PromptAnswer:
    """One prompt's output, what it took, and what the check found.

    Attributes:
        client_ttft_s: from the request to the first token as this client saw it.
        verdict: None when it was not checked.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    text: str
    seed: int
    finish_reason: str
    measured: Measured
    client_ttft_s: float
    verdict: Verdict | None


def answer_all(
    questions: Sequence[str],
    address: str,
    options: GenerateOptions,
    report: JsonReport,
    screen: AnswerScreen,
    *,
    check: bool,
    timeout_s: float,
) -> None:
    """Asks the draft node at `address` all questions; the report has the answers, also when one fails."""
    checker = _load_checker(report.request.model, report.request.quant, screen) if check else None
    with Client(address, timeout_s=timeout_s) as client:
        report.note_devices(client.describe())
        try:
            for number, question in enumerate(questions, 1):
                screen.announce(number, len(questions), question)
                answer = ask(client, question, options, checker)
                report.add(answer)
                screen.show_answer(answer, several=len(questions) > 1)
        finally:
            report.write()
    screen.show_summary(report.answers)


def ask(client: Client, question: str, options: GenerateOptions, checker: Checker | None) -> PromptAnswer:
    """Streams the answer to stdout; checks it when there is a checker."""
    started = time.monotonic()
    first_token = started
    with client.generate(question, options=options) as generation:
        for chunk in generation:
            if first_token == started:
                first_token = time.monotonic()
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    seed, reason = generation.seed or 0, generation.finish_reason or ""
    verdict = None
    if checker is not None:
        sampling = SamplingParams(options.temperature, options.top_k, options.top_p, seed)
        prompt_ids, token_ids = generation.prompt_ids, generation.token_ids
        verdict = checker.judge(prompt_ids, token_ids, sampling, reason, options.max_new_tokens)
    return PromptAnswer(
        prompt=question,
        prompt_ids=generation.prompt_ids,
        token_ids=generation.token_ids,
        text=generation.text,
        seed=seed,
        finish_reason=reason,
        measured=Measured.of(generation.statistics),
        client_ttft_s=first_token - started,
        verdict=verdict,
    )


def _load_checker(model: str, quant: str, screen: AnswerScreen) -> Checker:
    from flowedge.cli.check import Checker  # noqa: PLC0415 (it imports torch)

    screen.progress("this machine", "loading the whole model into this process, to check with")
    return Checker(model, quant)
