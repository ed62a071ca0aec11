"""The pipelines that `flowedge serve` is to stand in front of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.options import choose_drafting
from flowedge.cli.output import lines_are_logged
from flowedge.cli.pipelines.hub_models import download_models
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.preflight import Preflight
from flowedge.cli.pipelines.request import PipelineRequest, requested_pipeline
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.client.assembly import OnProgress
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.plain_text import counted
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.gateway.pipelines.file import DeclaredPipeline, read_pipelines
from flowedge.gateway.pipelines.opening import DeviceProgress
from flowedge.gateway.pipelines.served import PipelineEntry
from flowedge.weights.fetch.progress import FetchProgress

Names = tuple[str, tuple[str, ...]]
"""The name of the model for clients, "" for its own, and further names."""


def open_entry(
    request: PipelineRequest, names: Names, screen: AnswerScreen, progress: DeviceProgress
) -> AbstractContextManager[Sequence[PipelineEntry]]:
    """Return the context that yields the pipeline that is asked for, which is ready then.

    Wrong options are found before. Agents that the context starts end with it.

    Args:
        progress: is told what each device does.
    """
    _check(request, screen)
    return _opened(request, names, screen, progress)


@contextmanager
def _opened(
    request: PipelineRequest, names: Names, screen: AnswerScreen, progress: DeviceProgress
) -> Iterator[Sequence[PipelineEntry]]:
    with screen.transfers() as shown:

        def transferred(device: str, transfer: FetchProgress) -> None:
            shown(device, transfer)
            progress.transferred(device, transfer)

        report = _both(screen, progress)
        with open_planned(request, report, transferred, keeps_up=False) as planned:  # the gateway does that
            model, aliases = names
            yield (PipelineEntry(planned.draft_node, planned.spec, model, aliases),)


def _both(screen: AnswerScreen, progress: DeviceProgress) -> OnProgress:
    def report(device: str, message: str) -> None:
        screen.progress(device, message)
        progress.report(device, message)

    return report


def open_declared(
    path: Path, screen: AnswerScreen, progress: DeviceProgress
) -> AbstractContextManager[Sequence[PipelineEntry]]:
    """Return the context that yields the pipelines of a file, which the gateway sets up.

    Wrong options are found before. Agents that the context starts end with it.

    Args:
        progress: is told what each device does.

    Raises:
        BadRequestError: when the file cannot be used.
    """
    declared = read_pipelines(path)
    requests = [_request_of(each) for each in declared]
    for request in requests:
        if request is not None:
            _check(request, screen)
    return _opened_file(declared, requests, _both(screen, progress))


@contextmanager
def _opened_file(
    declared: Sequence[DeclaredPipeline], requests: Sequence[PipelineRequest | None], report: OnProgress
) -> Iterator[Sequence[PipelineEntry]]:
    with ExitStack() as started:
        yield tuple(
            _entry(each, request, started, report) for each, request in zip(declared, requests, strict=True)
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
    declared: DeclaredPipeline, request: PipelineRequest | None, started: ExitStack, report: OnProgress
) -> PipelineEntry:
    spec = None
    draft_node = declared.draft_node or ""
    if request is not None:
        addresses = declared.agents
        if declared.stages is not None:
            stages = counted(declared.stages, "stage agent")
            report("this machine", f"starting a draft node and {stages}")
            cluster = started.enter_context(LocalCluster(declared.stages))
            cluster.keep_up(report)
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
