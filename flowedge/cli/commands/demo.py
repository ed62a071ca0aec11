"""`flowedge demo`: a whole pipeline on this machine, as it would be on a network."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from typing import Annotated

import typer

from flowedge.cli.options import BUNDLED
from flowedge.core.errors import DeadlineError
from flowedge.core.plain_text import checked_utf8

# What the bundled model can do.
DEFAULT_PROMPTS = (
    "Write a Python function that counts the vowels in a text.",
    "Write a JavaScript function that reverses a string.",
    "Tell me a long story about the sea.",
)

NEXT = (
    "chat with it here: flowedge chat --model bundled",
    "or in a browser: flowedge serve --stages 4 --model bundled, then http://127.0.0.1:8000/",
)


def demo(
    prompt: Annotated[
        str | None, typer.Option(help="The prompt. Default: three that show what the bundled model can do.")
    ] = None,
    stages: Annotated[int, typer.Option(min=1, help="Number of stage agents.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 200,
) -> None:
    """Show a pipeline on this machine: agents that find each other, answers, and their check."""
    from flowedge.agent.local_cluster import LocalCluster
    from flowedge.cli.answers import answer_all
    from flowedge.cli.pipelines.model_choice import Preparation
    from flowedge.cli.pipelines.request import PipelineRequest
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.core.generate_options import GenerateOptions
    from flowedge.discovery.discovery import discover
    from flowedge.discovery.settings import DiscoverySettings

    screen = AnswerScreen()
    options = GenerateOptions(max_new_tokens=max_new_tokens)
    asked = PipelineRequest(model=BUNDLED, drafter=BUNDLED, stages=stages)
    prompts = DEFAULT_PROMPTS if prompt is None else (checked_utf8(prompt, "--prompt"),)
    preparation = Preparation(screen.progress, screen.note, options, prompts, check=True)
    preparation.run(asked)
    screen.progress("this machine", f"starting {stages + 1} agents, each a process of its own")
    group = secrets.token_hex(3)  # so that other commands do not find these agents
    with ExitStack() as started:
        with screen.working("starting agents"):
            cluster = started.enter_context(LocalCluster(stages, name="demo", group=group))
        names = [agent.name for agent in cluster.agents]
        found = asyncio.run(discover(10.0, want=names, settings=DiscoverySettings(group=group)))
        addresses = {device.name: device.address for device in found}
        missing = [name for name in names if name not in addresses]
        if missing:
            raise DeadlineError(f"zeroconf did not find {', '.join(missing)} within 10 s")
        screen.progress("this machine", f"found by zeroconf: {', '.join(addresses)}")
        request = asked.changed(stages=None, peers=tuple(addresses[name] for name in names))
        answer_all(request, preparation, screen)
    for line in NEXT:
        screen.note(line)
