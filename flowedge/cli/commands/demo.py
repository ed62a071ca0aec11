"""`flowedge demo`: a whole pipeline on this machine, as it would be on a network."""

from __future__ import annotations

from typing import Annotated

import typer

from flowedge.cli.exits import EXIT_DIFFERENT

DEFAULT_PROMPT = "Write a Python function that counts the vowels in a text."


def demo(
    prompt: Annotated[str, typer.Option(help="What to ask.")] = DEFAULT_PROMPT,
    stages: Annotated[int, typer.Option(min=1, help="Number of stage agents.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 200,
) -> None:
    """Show it all on one machine: agents that find each other, one answer, and the check of it."""
    import asyncio  # noqa: PLC0415

    from flowedge.agent.local_cluster import LocalCluster  # noqa: PLC0415
    from flowedge.cli.answers import answer_all  # noqa: PLC0415
    from flowedge.cli.options import BUNDLED  # noqa: PLC0415
    from flowedge.cli.pipelines import PipelineRequest, open_pipeline  # noqa: PLC0415
    from flowedge.cli.report import JsonReport  # noqa: PLC0415
    from flowedge.cli.screens.answer_screen import AnswerScreen  # noqa: PLC0415
    from flowedge.client.request import GenerateOptions  # noqa: PLC0415
    from flowedge.core.errors import DeadlineError  # noqa: PLC0415
    from flowedge.discovery.discovery import discover  # noqa: PLC0415

    screen = AnswerScreen()
    options = GenerateOptions(max_new_tokens=max_new_tokens)
    screen.progress("this machine", f"starting {stages + 1} agents, each a process of its own")
    with LocalCluster(stages, name="demo") as cluster:
        names = [agent.name for agent in cluster.agents]
        addresses = {record.name: record.address for record in asyncio.run(discover(10.0, want=names))}
        missing = [name for name in names if name not in addresses]
        if missing:
            raise DeadlineError(f"zeroconf did not find {', '.join(missing)} within 10 s")
        screen.progress("this machine", f"found by zeroconf: {', '.join(addresses)}")
        request = PipelineRequest(BUNDLED, (BUNDLED,), peers=tuple(addresses[name] for name in names))
        report = JsonReport(request, options, None)
        with (
            screen.transfers() as transfers,
            open_pipeline(request, screen.progress, transfers) as address,
        ):
            answer_all([prompt], address, options, report, screen, check=True, timeout_s=600.0)
    if not report.passed:
        raise typer.Exit(EXIT_DIFFERENT)
