"""`flowedge generate`: answers prompts through a pipeline of agents."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import (
    BUNDLED,
    ClusterDir,
    Drafter,
    DraftQuantOption,
    DraftVocabularyOption,
    Exactness,
    Insecure,
    KvForm,
    LayerQuant,
    Model,
    Peers,
    PipelineDtype,
    Split,
    System,
    Temperature,
    Tokenizer,
    TopK,
    TopP,
    Verification,
    choose_drafting,
    local_path,
    split_peers,
)
from flowedge.cli.output import errors_only
from flowedge.core.errors import BadRequestError
from flowedge.core.plain_text import checked_utf8
from flowedge.core.request import DEFAULT_PRIORITY, DEFAULT_STRATEGY, Noise, Priority
from flowedge.drafting.draft_form import DraftForm
from flowedge.strategies.choice import STRATEGIES, WITH_MIDDLE_MODELS, checked_strategy


def generate(
    model: Model = BUNDLED,
    tokenizer: Tokenizer = None,
    drafter: Drafter = None,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Start a draft node and N stages on this machine, for this run."),
    ] = None,
    peers: Peers = None,
    split: Split = None,
    strategy: Annotated[
        str,
        typer.Option(
            help=f"{DEFAULT_STRATEGY}, or a method to compare with: "
            f"{', '.join(name for name in STRATEGIES if name != DEFAULT_STRATEGY)}."
        ),
    ] = "auto",
    middle: Annotated[
        str | None,
        typer.Option(
            metavar="DIR,...",
            help=f"Middle models of {' and '.join(WITH_MIDDLE_MODELS)}, the smallest first: language models "
            "with the target's tokenizer. "
            "Each needs an agent; in --peers these agents come after the stages.",
        ),
    ] = None,
    quant: LayerQuant = "none",
    dtype: PipelineDtype = "auto",
    kv: KvForm = "native",
    exact: Exactness = "auto",
    verification: Verification = "auto",
    draft_quant: DraftQuantOption = "auto",
    draft_vocabulary: DraftVocabularyOption = "auto",
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the sampling. Default: a random seed, which is shown.")
    ] = None,
    noise: Annotated[
        Noise,
        typer.Option(
            help="What drafts are ranked by above temperature 0: their probability alone (plain), or also "
            "the noise of the sampling (shared). The output is the same."
        ),
    ] = "shared",
    priority: Annotated[
        Priority, typer.Option(help="Which request comes first if several wait for room at the draft node.")
    ] = DEFAULT_PRIORITY,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens in an answer.")] = 256,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text before which an answer ends. Repeat the option for several."),
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
    system: System = None,
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
        float, typer.Option(min=0.1, metavar="SECONDS", help="Maximum time for an answer.")
    ] = 600.0,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Answer prompts; the text streams as it is generated.

    Without --stages and --peers, the agents found on the network are used.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 an answer differs from the plain model's by more than
    rounding explains.
    """
    from flowedge.cli.answers import answer_all
    from flowedge.cli.pipelines.hub_models import download_models
    from flowedge.cli.pipelines.preflight import Preflight
    from flowedge.cli.pipelines.request import PipelineRequest
    from flowedge.cli.prompts import PromptSources
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.client.request import GenerateOptions, checked_seconds

    # Wrong options are found before anything is started.
    checked_seconds("--timeout", timeout)
    middles = _middle_models(middle, checked_strategy(strategy))
    drafting = choose_drafting(model, drafter, strategy)
    options = GenerateOptions(
        strategy=drafting.strategy,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        noise=noise,
        priority=priority,
        stop=tuple(checked_utf8(text, "--stop") for text in stop or ()),
        system=None if system is None else checked_utf8(system, "--system"),
    )
    draft_form = DraftForm.parsed(draft_quant, draft_vocabulary)
    questions = PromptSources(prompt, prompt_file, prompts, limit).read()
    request = PipelineRequest(
        model=local_path(model),
        drafter=drafting.drafter,
        quant=quant,
        split=split,
        stages=stages,
        peers=tuple(split_peers(peers)) if peers is not None else None,
        middles=middles,
        dtype=dtype,
        kv=kv,
        exact=exact,
        verification=verification,
        tokenizer="" if tokenizer is None else local_path(tokenizer),
        draft_form=draft_form,
    )
    screen = AnswerScreen(quiet=quiet)
    preflight = Preflight(request, options, questions, check=check, json_file=json_file)
    preflight.run()
    if download_models(request, screen.progress, check=check, quiet=quiet):
        preflight.run()  # the files that have come tell more
    with errors_only() if quiet else nullcontext():
        choose_credentials(cluster_dir, insecure)
        if drafting.notice and not request.is_made_already:
            screen.note(drafting.notice)
        answer_all(
            questions,
            request,
            options,
            screen,
            check=check,
            json_file=json_file,
            timeout_s=timeout,
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
            f"--strategy {strategy} uses no middle models; only {' and '.join(WITH_MIDDLE_MODELS)} does"
        )
    return models
