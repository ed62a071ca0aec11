"""`flowedge chat`: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import (
    BUNDLED,
    ClusterDir,
    Drafter,
    Insecure,
    LayerQuant,
    Model,
    Peers,
    System,
    Temperature,
    Tokenizer,
    TopK,
    TopP,
    choose_drafting,
    local_path,
    split_peers,
)
from flowedge.cli.output import warn
from flowedge.core.plain_text import checked_utf8
from flowedge.core.request import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from flowedge.cli.chat.talk import Talk

_RETRIES = 5  # of a message for which there was no room


def chat(
    model: Model = BUNDLED,
    tokenizer: Tokenizer = None,
    drafter: Drafter = None,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Start a draft node and N stages on this machine, for this chat."),
    ] = None,
    peers: Peers = None,
    quant: LayerQuant = "none",
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the sampling. Default: a random seed for each answer.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Maximum number of tokens in an answer; fewer where the context is full.")
    ] = 512,
    system: System = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Continue the conversation of this file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only answers and errors.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Maximum time for an answer.")
    ] = 600.0,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Chat with a model; agents are started here if the network has none.

    The text streams as it is generated, and /help shows the commands. Where standard input is no terminal,
    each of its lines is a message. Without --stages and --peers, the agents found on the network are used.
    """
    from flowedge.cli.answers import fitting_options
    from flowedge.cli.chat.input import is_terminal
    from flowedge.cli.chat.talk import LiveLine, Talk
    from flowedge.cli.pipelines.hub_models import download_models
    from flowedge.cli.pipelines.opening import open_or_start
    from flowedge.cli.pipelines.preflight import Preflight
    from flowedge.cli.pipelines.request import PipelineRequest
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.client import Client, GenerateOptions
    from flowedge.client.conversation import read_conversation
    from flowedge.client.request import checked_seconds

    checked_seconds("--timeout", timeout)
    drafting = choose_drafting(model, drafter, DEFAULT_STRATEGY)
    options = GenerateOptions(
        strategy=drafting.strategy,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        fit_context=True,
    )
    request = PipelineRequest(
        model=local_path(model),
        drafter=drafting.drafter,
        quant=quant,
        stages=stages,
        peers=tuple(split_peers(peers)) if peers is not None else None,
        tokenizer="" if tokenizer is None else local_path(tokenizer),
    )
    screen = AnswerScreen(quiet=quiet)
    Preflight(request, options, (), check=False).run()
    if load is not None:
        read_conversation(load)  # before anything is started
    download_models(request, screen.progress, check=False, quiet=quiet)
    choose_credentials(cluster_dir, insecure)
    with (
        screen.transfers() as transfers,
        open_or_start(request, screen.progress, transfers) as planned,
        Client(planned.draft_node, timeout_s=timeout, retries=_RETRIES) as client,
    ):
        if request.is_made_already:
            options = fitting_options(options, client.describe())
        conversation = client.conversation(keeps_partial=True, options=options)
        if load is not None:
            conversation.load(load)
        if system is not None:
            conversation.set_system(checked_utf8(system, "--system"))
        failures = _converse(Talk(client, conversation, screen, LiveLine.on_terminal()), quiet=quiet)
    if failures and not is_terminal():
        raise typer.Exit(1)


def _converse(talk: Talk, *, quiet: bool) -> int:
    """Take what is entered until the chat ends; return the number of failures."""
    from flowedge.cli.chat.chat_commands import EndOfChatError, take
    from flowedge.cli.chat.input import edited, is_terminal, lines

    person = is_terminal()
    if person and not quiet:
        warn("/help shows the commands; Ctrl-C stops an answer, Ctrl-D ends the chat")
    try:
        for entered in edited() if person else lines():
            take(talk, entered)
    except EndOfChatError:
        pass
    return talk.failures
