"""A pipeline for a person who wants one at once: of the network, or of agents that are started here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from flowedge.cli.pipelines.answering import NoAgentFoundError
from flowedge.cli.pipelines.opening import open_pipeline
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client.assembly import OnProgress
from flowedge.weights.fetch.progress import OnTransfer

LOCAL_STAGES = 4


@contextmanager
def open_or_start(
    request: PipelineRequest, report: OnProgress, on_transfer: OnTransfer = lambda *_: None
) -> Iterator[str]:
    """Yield what `open_pipeline` yields; agents are started here if none is found on the network."""
    with ExitStack() as opened:
        try:
            address = opened.enter_context(open_pipeline(request, report, on_transfer))
        except NoAgentFoundError:
            report("the network", "has no agent that answers, so agents are started here for this run")
            local = replace(request, stages=LOCAL_STAGES)
            address = opened.enter_context(open_pipeline(local, report, on_transfer))
        yield address
