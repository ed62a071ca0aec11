"""The pipelines that `flowedge serve` is to stand in front of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from flowedge.agent.local_cluster import LOG_BYTES, LocalCluster
from flowedge.cli.options import choose_drafting
from flowedge.cli.output import lines_are_logged
from flowedge.cli.pipelines.model_choice import Preparation
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.request import PipelineRequest, requested_pipeline
from flowedge.cli.screens.answer_screen import AnswerScreen
from flowedge.client.assembly import OnProgress
from flowedge.core.generate_options import GenerateOptions
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

    Wrong options are found before, and a person is asked for the model of agents that are to be started here.
    Agents that the context starts end with it.

    Args:
        progress: is told what each device does.
    """
    preparation = _preparation(screen)
    preparation.run(request)
    if request.stages is not None:
        request = preparation.with_model(request)
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
        # The gateway sets a lost pipeline up again. It listens already, so nobody is asked for a model.
        with_model = replace(_preparation(screen), asks=False).with_model
        with open_planned(request, report, with_model, transferred, keeps_up=False) as planned:
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
            _preparation(screen).run(request)
    return _opened_file(declared, requests, _both(screen, progress))


@contextmanager
def _opened_file(
    declared: Sequence[DeclaredPipeline], requests: Sequence[PipelineRequest | None], report: OnProgress
) -> Iterator[Sequence[PipelineEntry]]:
    with ExitStack() as started:
        yield tuple(
            _entry(each, request, started, report) for each, request in zip(declared, requests, strict=True)
        )


def _preparation(screen: AnswerScreen) -> Preparation:
    return Preparation(screen.progress, screen.note, GenerateOptions(), quiet=lines_are_logged())


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
            cluster = LocalCluster.of_pipeline(declared.stages)
            report("this machine", f"starting {cluster.words}")
            started.enter_context(cluster)
            cluster.keep_up(report)
            size = f"the latest {LOG_BYTES >> 20} MiB of each"
            report("this machine", f"the logs of the agents are in {cluster.logs} until they end, {size}")
            addresses = tuple(cluster.addresses)
        draft_node, *others = addresses
        spec = request.spec(draft_node, tuple(others)).changed(standby=declared.standby or "")
    return PipelineEntry(
        draft_node,
        spec,
        declared.name or "",
        declared.aliases,
        declared.label or "",
        declared.certificate or "",
        declared.standby or "",
    )
