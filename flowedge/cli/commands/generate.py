"""`flowedge generate`: answers prompts through a pipeline of agents."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import (
    WAIT_S,
    ClusterDir,
    Insecure,
    Peers,
    Wait,
    choose_drafting,
    local_path,
    pipeline_peers,
)
from flowedge.cli.output import errors_only
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.errors import BadRequestError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.plain_text import checked_utf8
from flowedge.strategies.choice import WITH_MIDDLE_MODELS, checked_strategy

# Options of requests that have none here: what they do is for programs.
OF_PROGRAMS = (
    "tenant",
    "strategy_options",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "min_tokens",
    "logit_bias",
    "logprobs",
    "grammar",
    "echo",
    "fit_context",
)


@with_setting_options
def generate(
    *,
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, defaults={"model": ""})],
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Start a draft node and N stages on this machine, for this run."),
    ] = None,
    peers: Peers = None,
    wait: Wait = WAIT_S,
    options: Annotated[Typed, OptionsOf(GenerateOptions, without=OF_PROGRAMS)],
    middle: Annotated[
        str | None,
        typer.Option(
            metavar="DIR,...",
            help=f"Middle models of {' and '.join(WITH_MIDDLE_MODELS)}, the smallest first: language models "
            "with the target's tokenizer. Each needs an agent; a model named twice is divided over two. "
            "In --peers these agents come after the stages.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="The user's message; - reads it from standard input.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use the contents of this file as the message.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON-lines file with a "prompt", or "turns" (the first is used), on each line.',
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of prompts of the file to answer.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, help="Maximum number of prompts of the file asked at once.")
    ] = 1,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare the output with the plain model's, which is loaded here as a whole."
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="File for the answers, statistics and settings."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the answer and errors.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Maximum time to set the pipeline up, and then for an answer. Default: 600 for an answer; a "
            "set-up ends when nothing is heard of it.",
        ),
    ] = None,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Answer prompts; the text streams as it is generated.

    Without --model, the pipeline that runs on the network is used, of whatever model it is. Without --stages
    and --peers, a new one is set up on the idle agents of the network.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 an answer differs from the plain model's by more than
    rounding explains.
    """
    from flowedge.cli.answers import ANSWER_S, answer_all
    from flowedge.cli.pipelines.model_choice import Preparation
    from flowedge.cli.pipelines.request import requested_pipeline
    from flowedge.cli.prompts import PromptSources
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.client.request import checked_seconds

    # Wrong options are found before anything is started.
    if timeout is not None:
        checked_seconds("--timeout", timeout)
    middles = _middle_models(middle, checked_strategy(options["strategy"]))
    drafting = choose_drafting(pipeline["model"], pipeline["drafter"], options["strategy"])
    system = options["system"]
    checked = {
        "strategy": drafting.strategy,
        "stop": tuple(checked_utf8(text, "--stop") for text in options["stop"]),
        "system": None if system is None else checked_utf8(system, "--system"),
    }
    asked = GenerateOptions(**(options | checked))
    questions = PromptSources(prompt, prompt_file, prompts, limit).read()
    agents = None if peers is None else pipeline_peers(peers)
    request = requested_pipeline(
        pipeline,
        drafting,
        stages=stages,
        peers=agents,
        middles=middles,
        wait_s=wait if timeout is None else min(wait, timeout),
        limit_s=timeout,
    )
    screen = AnswerScreen(quiet=quiet)
    preparation = Preparation(screen.progress, screen.note, asked, questions, check, json_file, quiet)
    preparation.run(request)
    with errors_only() if quiet else nullcontext():
        choose_credentials(cluster_dir, insecure)
        if drafting.notice and not request.is_made_already:
            screen.note(drafting.notice)
        answer_all(
            request,
            preparation,
            screen,
            timeout_s=ANSWER_S if timeout is None else timeout,
            concurrency=concurrency,
        )


def _middle_models(text: str | None, strategy: str) -> tuple[str, ...]:
    if text is None:
        return ()
    models = tuple(local_path(part.strip()) for part in text.split(",") if part.strip())
    if not models:
        raise BadRequestError("--middle names no model; give DIR or DIR,DIR with the smallest first")
    if strategy not in WITH_MIDDLE_MODELS:
        raise BadRequestError(
            f"--strategy {strategy} uses no middle models; {' and '.join(WITH_MIDDLE_MODELS)} do"
        )
    return models
