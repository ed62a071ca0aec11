"""Asks a draft node prompt by prompt, and shows the text as it comes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flowedge.cli.output import write_answer
from flowedge.cli.pipelines.opening import open_pipeline
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.cli.prompt_answer import PromptAnswer
from flowedge.cli.report import JsonReport
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.client import Client
from flowedge.client.request import GenerateOptions
from flowedge.client.statistics import typed_statistics
from flowedge.core.sampling import SamplingParams
from flowedge.models.libraries import import_libraries

if TYPE_CHECKING:
    from flowedge.cli.check import Checker

EXIT_DIFFERENT = 3  # exit code: an answer differs from the plain model's by more than rounding explains


def answer_all(
    prompts: Sequence[str],
    request: PipelineRequest,
    options: GenerateOptions,
    screen: AnswerScreen,
    *,
    check: bool,
    json_file: Path | None = None,
    timeout_s: float = 600.0,
) -> None:
    """Ask a pipeline all prompts; the report is written even when a prompt fails.

    Raises:
        typer.Exit: when an answer differs from the plain model's by more than rounding explains.
    """
    report = JsonReport(request, options, json_file)
    with (
        screen.transfers() as transfers,
        open_pipeline(request, screen.progress, transfers) as address,
        Client(address, timeout_s=timeout_s) as client,
    ):
        report.draft_node = client.describe()
        checker = _load_checker(request, report.draft_node.dtype, screen) if check else None
        try:
            for number, prompt in enumerate(prompts, 1):
                screen.announce(number, len(prompts), prompt)
                answer = ask(client, prompt, options, checker)
                report.answers.append(answer)
                screen.show_answer(answer, several=len(prompts) > 1)
        finally:
            report.write()
        screen.show_summary(report.answers)
    if not report.passed:
        raise typer.Exit(EXIT_DIFFERENT)


def ask(client: Client, prompt: str, options: GenerateOptions, checker: Checker | None) -> PromptAnswer:
    """Stream the answer to standard output; compare it with the plain model's if there is a checker."""
    started = time.monotonic()
    first_token = started
    with client.generate(prompt, options=options) as generation:
        for chunk in generation:
            if first_token == started:
                first_token = time.monotonic()
            write_answer(chunk.text)
    write_answer("\n")
    seed, reason = generation.seed or 0, generation.finish_reason or ""
    verdict = None
    if checker is not None:
        sampling = SamplingParams(options.temperature, options.top_k, options.top_p, seed)
        prompt_ids, token_ids = generation.prompt_ids, generation.token_ids
        verdict = checker.judge(prompt_ids, token_ids, sampling, reason, options.max_new_tokens)
    return PromptAnswer(
        prompt=prompt,
        prompt_ids=generation.prompt_ids,
        token_ids=generation.token_ids,
        text=generation.text,
        seed=seed,
        finish_reason=reason,
        statistics=typed_statistics(generation.statistics),
        client_ttft_s=first_token - started,
        verdict=verdict,
    )


def _load_checker(request: PipelineRequest, dtype: str, screen: AnswerScreen) -> Checker:
    screen.progress("this machine", "loading the whole model into this process, to check with")
    import_libraries()
    from flowedge.cli.check import Checker  # noqa: PLC0415 (only --check needs torch)

    return Checker(request.model, request.quant, dtype, request.tokenizer)
