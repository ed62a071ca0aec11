"""`flowedge chat`: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import (
    WAIT_S,
    ClusterDir,
    Insecure,
    Peers,
    Wait,
    choose_drafting,
    pipeline_peers,
)
from flowedge.cli.output import warn
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.plain_text import checked_utf8
from flowedge.core.request import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from flowedge.cli.chat.talk import Talk

_RETRIES = 5  # of a message for which there was no room


@with_setting_options
def chat(
    *,
    pipeline: Annotated[
        Typed,
        OptionsOf(PipelineConfig, only=("model", "tokenizer", "drafter", "quant"), defaults={"model": ""}),
    ],
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Start a draft node and N stages on this machine, for this chat."),
    ] = None,
    peers: Peers = None,
    wait: Wait = WAIT_S,
    options: Annotated[
        Typed,
        OptionsOf(
            GenerateOptions,
            only=("max_new_tokens", "temperature", "top_p", "top_k", "seed", "system"),
            defaults={"max_new_tokens": 512},
        ),
    ],
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

    The text streams as it is generated, and is shorter where the context is full. /help shows the commands.
    Where standard input is no terminal, each of its lines is a message. Without --model, the pipeline that
    runs on the network is used, of whatever model it is.
    """
    from flowedge.cli.answers import NO_TEMPLATE, fitting_options, sampling_text
    from flowedge.cli.chat.input import is_terminal
    from flowedge.cli.chat.talk import LiveLine, Talk
    from flowedge.cli.pipelines.model_choice import Preparation
    from flowedge.cli.pipelines.opening import open_or_start
    from flowedge.cli.pipelines.request import requested_pipeline
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.client import Client, GenerateOptions
    from flowedge.client.conversation import read_conversation
    from flowedge.client.request import checked_seconds

    checked_seconds("--timeout", timeout)
    drafting = choose_drafting(pipeline["model"], pipeline["drafter"], DEFAULT_STRATEGY)
    system = options.pop("system")
    chosen = GenerateOptions(strategy=drafting.strategy, fit_context=True, **options)
    agents = None if peers is None else pipeline_peers(peers)
    request = requested_pipeline(pipeline, drafting, stages=stages, peers=agents, wait_s=wait)
    screen = AnswerScreen(quiet=quiet)
    if load is not None:
        read_conversation(load)  # before anything is started
    preparation = Preparation(screen.progress, screen.note, chosen, quiet=quiet)
    preparation.run(request)
    choose_credentials(cluster_dir, insecure)
    with (
        screen.transfers() as transfers,
        open_or_start(request, screen.progress, preparation.with_model, transfers) as planned,
        Client(planned.draft_node, timeout_s=timeout, retries=_RETRIES) as client,
    ):
        device = client.describe()
        screen.progress(device.name, f"draws with {sampling_text(chosen, device)}; /set changes it")
        if device.no_chat_template:
            screen.note(NO_TEMPLATE)
        conversation = client.conversation(keeps_partial=True)
        if load is not None:
            conversation.load(load)
        if system is not None:
            conversation.set_system(checked_utf8(system, "--system"))
        talk = Talk(
            client, conversation, screen, LiveLine.on_terminal(), fitting_options(chosen, device), device
        )
        failures = _converse(talk, quiet=quiet)
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
