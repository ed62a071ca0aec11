"""The pipelines that `flowedge serve` is to stand in front of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.options import choose_drafting
from flowedge.cli.output import lines_are_logged
from flowedge.cli.pipelines.hub_models import download_models
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.preflight import Preflight
from flowedge.cli.pipelines.request import PipelineRequest, requested_pipeline
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.plain_text import counted
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.gateway.pipelines.file import DeclaredPipeline, read_pipelines
from flowedge.gateway.pipelines.served import PipelineEntry

Names = tuple[str, tuple[str, ...]]
"""The name of the model for clients, "" for its own, and further names."""


@contextmanager
def open_entry(
    request: PipelineRequest, names: Names, screen: AnswerScreen
) -> Iterator[tuple[PipelineEntry, ...]]:
    """Yield the pipeline that is asked for, which is ready then; agents started here end with the context."""
    _check(request, screen)
    with (
        screen.transfers() as transfers,
        open_planned(request, screen.progress, transfers, keeps_up=False) as planned,  # the gateway does that
    ):
        model, aliases = names
        yield (PipelineEntry(planned.draft_node, planned.spec, model, aliases),)


@contextmanager
def open_declared(path: Path, screen: AnswerScreen) -> Iterator[tuple[PipelineEntry, ...]]:
    """Yield the pipelines of a file, which the gateway sets up; agents started here end with the context.

    Raises:
        BadRequestError: when the file cannot be used.
    """
    declared = read_pipelines(path)
    requests = [_request_of(each) for each in declared]
    for request in requests:
        if request is not None:
            _check(request, screen)
    with ExitStack() as started:
        yield tuple(
            _entry(each, request, started, screen) for each, request in zip(declared, requests, strict=True)
        )


def _check(request: PipelineRequest, screen: AnswerScreen) -> None:
    """Find wrong options before anything is started; download what is missing."""
    preflight = Preflight(request, GenerateOptions(), ())
    preflight.run()
    if download_models(request, screen.progress, check=False, quiet=lines_are_logged()):
        preflight.run()  # the files that have come tell more


def _request_of(declared: DeclaredPipeline) -> PipelineRequest | None:
    """Return what has to be set up; None if that is done already."""
    if declared.draft_node is not None:
        return None
    drafting = choose_drafting(declared.model, declared.drafter, DEFAULT_STRATEGY)
    return requested_pipeline(
        declared.settings(), drafting, stages=declared.stages, peers=declared.agents or None
    )


def _entry(
    declared: DeclaredPipeline, request: PipelineRequest | None, started: ExitStack, screen: AnswerScreen
) -> PipelineEntry:
    spec = None
    draft_node = declared.draft_node or ""
    if request is not None:
        addresses = declared.agents
        if declared.stages is not None:
            stages = counted(declared.stages, "stage agent")
            screen.progress("this machine", f"starting a draft node and {stages}")
            cluster = started.enter_context(LocalCluster(declared.stages))
            cluster.keep_up(screen.progress)
            addresses = tuple(agent.address for agent in cluster.agents)
        draft_node, *others = addresses
        spec = request.spec(draft_node, tuple(others))
    return PipelineEntry(
        draft_node,
        spec,
        declared.name or "",
        declared.aliases,
        declared.label or "",
        declared.certificate or "",
    )
