"""Asks a draft node prompt by prompt, and shows the text as it comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from flowedge.cli.output import warn, write_answer
from flowedge.cli.pipelines.model_choice import Preparation
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.cli.prompt_answer import Verdict
from flowedge.cli.questions import Questioner, Questions
from flowedge.cli.report import JsonReport
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.client import Client, Device
from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.generate_options import GREEDY, GenerateOptions
from flowedge.core.pipeline_config import NO_DRAFTER
from flowedge.core.plain_text import counted
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.core.sampling import SamplingParams
from flowedge.models.host.libraries import import_libraries
from flowedge.strategies.choice import AUTOREGRESSIVE

if TYPE_CHECKING:
    from flowedge.cli.check import Checker

ANSWER_S = 600.0  # for an answer, where the user gives no other time
INCOMPLETE = (
    "the answer above is not complete. The same command asks again, and waits for a pipeline that is set up "
    "again; with the same --seed the answer begins alike"
)
NO_TEMPLATE = "this model has no chat template: it is a base model, which goes on with a text as it stands"
EXIT_DIFFERENT = 3  # exit code: an answer differs from the plain model's by more than rounding explains


def answer_all(
    request: PipelineRequest,
    preparation: Preparation,
    screen: AnswerScreen,
    *,
    timeout_s: float = ANSWER_S,
    concurrency: int = 1,
) -> None:
    """Ask a pipeline all prompts, `concurrency` at once; the report is written even when a prompt fails.

    preparation: of the command, with the prompts and the options.

    Raises:
        typer.Exit: when an answer differs from the plain model's by more than rounding explains.
    """
    prompts, check = preparation.prompts, preparation.check
    report = JsonReport(request, preparation.options, preparation.json_file, concurrency)
    with (
        screen.transfers() as transfers,
        open_planned(request, screen.progress, preparation.with_model, transfers) as planned,
        Client(planned.draft_node, timeout_s=timeout_s) as client,
    ):
        report.draft_node = device = client.describe()
        report.request = planned.request
        report.options = options = fitting_options(preparation.options, device)
        screen.progress(device.name, f"draws with {sampling_text(preparation.options, device)}")
        if device.no_chat_template:
            screen.note(NO_TEMPLATE)
        if check:
            _check_is_served(planned.request, device)
        checker = _load_checker(planned.request, device.dtype, screen) if check else None
        askings = [Questioner(client, prompt, options, timeout_s) for prompt in prompts]
        try:
            with Questions(askings, concurrency) as questions:
                for index, asking in enumerate(askings):
                    if index:
                        write_answer("\n")  # sets the answers apart
                    if concurrency == 1:
                        asking.on_waiting, asking.on_pause = screen.show_queue_position, screen.show_pause
                        asking.on_recovering = screen.show_recovering
                    screen.announce(index + 1, len(prompts), asking.prompt)
                    _show(questions.texts(index), screen)
                    answer = asking.answer(_judge(asking, checker, screen))
                    report.answers.append(answer)
                    screen.show_answer(answer, several=len(prompts) > 1)
        except BaseException:
            _write_finished(report)
            raise
        screen.show_summary(report.answers)  # first: it is all that is left if the file cannot be written
        report.write()
    if not report.passed:
        raise typer.Exit(EXIT_DIFFERENT)


def _write_finished(report: JsonReport) -> None:
    """Write the answers before an error; a failure to write is shown beside that error."""
    try:
        report.write()
    except FlowEdgeError as error:
        warn(f"flowedge: {error}")


def _show(texts: Iterable[str], screen: AnswerScreen) -> None:
    """Write an answer to standard output as it comes.

    The output ends with a line break whatever ends the answer, so that an error stands on a line of its own.
    """
    begun = False
    try:
        for text in texts:
            begun = begun or bool(text)
            write_answer(text)
    except (KeyboardInterrupt, FlowEdgeError) as error:
        if begun:
            write_answer("\n")
            if isinstance(error, FlowEdgeError):
                screen.note(INCOMPLETE)
        if isinstance(error, KeyboardInterrupt):
            warn("cancelled")
        raise
    write_answer("\n")


def _judge(asking: Questioner, checker: Checker | None, screen: AnswerScreen) -> Verdict | None:
    generation, options = asking.generation, asking.options
    if checker is None or generation is None:
        return None
    tokens = len(generation.token_ids)
    screen.progress("this machine", f"checking {counted(tokens, 'token')} with the plain model, one by one")
    sampling = SamplingParams(**options.drawing(), seed=generation.seed or 0)
    reason = generation.finish_reason or ""
    with screen.working("checking", lambda: checker.progress):
        return checker.judge(
            generation.prompt_ids, generation.token_ids, sampling, reason, options.max_new_tokens
        )


def fitting_options(options: GenerateOptions, device: Device) -> GenerateOptions:
    """Return the options for a pipeline, which may have no drafter, with what they leave to its model."""
    plain = device.drafter == NO_DRAFTER and options.strategy == DEFAULT_STRATEGY
    fitting = replace(options, strategy=AUTOREGRESSIVE) if plain else options
    return fitting.with_sampling(device.sampling)


def sampling_text(options: GenerateOptions, device: Device) -> str:
    """Return how tokens are drawn, and who says so, for people.

    options: as they were given, before `fitting_options`.
    """
    drawing = options.with_sampling(device.sampling).drawing()
    if drawing["temperature"] == 0:
        return "temperature 0, which always takes the most likely token"
    values = ", ".join(f"{name} {value:g}" for name, value in drawing.items() if value != GREEDY[name])
    own = [name for name in device.sampling if getattr(options, name) is None]
    source = "the model's own" if own else "as asked for"
    return f"{values} ({source})"


def _check_is_served(request: PipelineRequest, device: Device) -> None:
    """Check that the plain model of `--check` is the model of a pipeline that was made already.

    Raises:
        BadRequestError: when the pipeline has another model, quantisation or tokenizer.
    """
    for option, asked, found in (
        ("--model", request.model, device.model),
        ("--quant", request.quant, device.quant),
        ("--tokenizer", request.tokenizer, device.tokenizer),
    ):
        if asked != found:
            raise BadRequestError(
                f"--check would compare with {option} {asked or '(the default)'}, but the pipeline of "
                f"{device.name} has {found or 'the default'}; "
                + (f"give {option} {found}" if found else f"leave out {option}")
            )


def _load_checker(request: PipelineRequest, dtype: str, screen: AnswerScreen) -> Checker:
    screen.progress("this machine", "loading the whole model into this process, to check with")
    import_libraries()
    from flowedge.cli.check import Checker  # noqa: PLC0415 (only --check needs torch)

    with screen.working("loading the whole model"):
        return Checker(request.model, request.quant, dtype, request.tokenizer)
