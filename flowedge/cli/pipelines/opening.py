"""Setting up the pipeline that serves a command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.output import repeated
from flowedge.cli.pipelines.forecast import forecast
from flowedge.cli.pipelines.model_choice import model_label
from flowedge.cli.pipelines.planned_pipeline import (
    NoAgentFoundError,
    PlannedPipeline,
    await_pipeline,
    describe,
)
from flowedge.cli.pipelines.request import PipelineRequest, split_text
from flowedge.client.assembly import OnProgress, PipelineSpec, assemble
from flowedge.core.errors import BadRequestError
from flowedge.weights.fetch.progress import OnTransfer

LOCAL_STAGES = 1  # that are started where the network has no agent: more only share the same cores

WithModel = Callable[[PipelineRequest], PipelineRequest]
"""Completes a request that names no model, when a new pipeline is needed (see Preparation.with_model)."""


@contextmanager
def open_planned(
    request: PipelineRequest,
    report: OnProgress,
    with_model: WithModel,
    on_transfer: OnTransfer = lambda *_: None,
    *,
    keeps_up: bool = True,
) -> Iterator[PlannedPipeline]:
    """Yield a pipeline, which is ready then; agents started here end with the context.

    A request without a model is served by the pipeline that runs, of whatever model. An agent that was
    started here is started again when it ends.

    Args:
        report: called with what each device is doing.
        with_model: completes a request without a model, if a new pipeline is needed.
        on_transfer: called while a device fetches weights.
        keeps_up: whether the pipeline of agents that were started again is set up again here; not for a
            caller that does that.
    """
    cluster: LocalCluster | None = None
    with ExitStack() as started:
        if request.stages is not None:
            stages, request = request.stages, with_model(request)
            cluster = LocalCluster.of_pipeline(stages, middles=len(request.middles))
            beside = f", and {len(request.middles)} for middle models" if request.middles else ""
            with _repeating(report) as heard:
                heard("this machine", f"starting {cluster.words}{beside}")
                started.enter_context(cluster)
            address, *others = cluster.addresses
            planned = PlannedPipeline(address, request, request.spec(address, tuple(others)), ready=False)
        elif request.peers is not None:
            planned = _on_peers(request, request.peers, report, with_model)
        else:
            from flowedge.cli.pipelines.network import plan_on_network  # noqa: PLC0415 (only a search needs it)

            planned = plan_on_network(request, report, with_model)
        if planned.spec is not None and not planned.ready:
            report("this machine", forecast(planned.spec, on_this_machine=cluster is not None))
            led: list[PipelineSpec] = []
            with _repeating(report) as heard:
                assemble(
                    planned.spec,
                    heard,
                    on_transfer=on_transfer,
                    limit_s=request.limit_s,
                    on_leader=led.append,
                )
            for again in led:
                found = describe(again.draft_node)
                planned = replace(planned, draft_node=again.draft_node, spec=again, found=found)
        if cluster is not None:
            spec = planned.spec if keeps_up else None
            cluster.keep_up(report, lambda: None if spec is None else assemble(spec, _in_silence))
        if planned.found is not None:
            from flowedge.cli.pipelines.network import remember  # noqa: PLC0415

            remember(planned.draft_node, planned.found)
        yield planned


def _in_silence(device: str, text: str) -> None:
    """Report nothing: the pipeline is set up again while a person reads or writes something else."""


@contextmanager
def _repeating(report: OnProgress) -> Iterator[OnProgress]:
    """Yield a report that repeats the last message of a set-up in which nothing happens for seconds."""
    last: list[tuple[str, str, float]] = []

    def heard(device: str, message: str) -> None:
        last[:] = [(device, message, time.monotonic())]
        report(device, message)

    def say_again(_: float) -> None:
        for device, message, since in last:
            if (seconds := time.monotonic() - since) > 1:
                report(device, f"{message} ({seconds:.0f} s so far)")

    with repeated(say_again):
        yield heard


def _on_peers(
    request: PipelineRequest, peers: tuple[str, ...], report: OnProgress, with_model: WithModel
) -> PlannedPipeline:
    """Plan the pipeline of named agents; wait for a draft node that sets its pipeline up by itself."""
    device = describe(peers[0])
    if device.stands_by_for and not device.stage_addresses and len(peers) == 1:
        report(device.name, f"stands by for {device.stands_by_for}, which leads the pipeline")
        peers = (device.stands_by_for,)
        device = describe(peers[0])
    if device.not_ready and request.wait_s is None:  # the caller waits by itself
        wanted = None if request.is_made_already else with_model(request).spec(peers[0], peers[1:])
        return PlannedPipeline(peers[0], request, wanted, ready=True)
    if device.not_ready and request.wait_s:
        device = await_pipeline(peers[0], device, request.wait_s, report)
    if len(peers) == 1:
        if not device.stage_addresses:
            raise BadRequestError(
                f"{peers[0]} is not a draft node (its role: {device.role}); name the draft node first, then "
                "the stages in order"
            )
        if request.split and request.split != device.stage_layers:
            layers = ",".join(map(str, device.stage_layers))
            raise BadRequestError(
                f"--split {split_text(request.split)}: the pipeline of {peers[0]} has the split {layers}; "
                "name its stages after it in --peers for another pipeline"
            )
        if not request.model:
            report(device.name, f"has the pipeline of {model_label(device.model)} ready")
        complete = request if device.config is None else request.completed_by(device.config)
        return PlannedPipeline(peers[0], complete, None, ready=True)
    if device.config is not None and request.is_served_by(peers[0], device):
        complete = request.completed_by(device.config)
        wanted = complete.spec(peers[0], peers[1:])
        if wanted.is_served_by(device):
            return PlannedPipeline(peers[0], complete, wanted, ready=True)
    request = with_model(request)
    return PlannedPipeline(peers[0], request, request.spec(peers[0], peers[1:]), ready=False)


@contextmanager
def open_or_start(
    request: PipelineRequest,
    report: OnProgress,
    with_model: WithModel,
    on_transfer: OnTransfer = lambda *_: None,
) -> Iterator[PlannedPipeline]:
    """Yield what `open_planned` yields; agents are started here if none is found on the network."""
    with ExitStack() as opened:
        try:
            planned = opened.enter_context(open_planned(request, report, with_model, on_transfer))
        except NoAgentFoundError:
            report("the network", "has no agent that answers, so agents are started here for this run")
            local = request.changed(stages=LOCAL_STAGES)
            planned = opened.enter_context(open_planned(local, report, with_model, on_transfer))
        yield planned
