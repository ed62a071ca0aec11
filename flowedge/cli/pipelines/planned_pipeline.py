"""A pipeline that is to serve a command, what an agent says of itself, and the error without agents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client import Client, Device
from flowedge.client.assembly import OnProgress, PipelineSpec
from flowedge.core.errors import DeadlineError


class NoAgentFoundError(DeadlineError):
    """No agent is announced on the network."""


@dataclass(frozen=True)
class PlannedPipeline:
    """The pipeline that is to serve a command.

    Attributes:
        draft_node: address.
        request: what was asked for, with the model.
        spec: the pipeline as a whole; None if whatever its draft node has is used.
        ready: whether it is set up already.
        found: the draft node as the network shows it; None if it was named or started here.
    """

    draft_node: str
    request: PipelineRequest
    spec: PipelineSpec | None
    ready: bool
    found: Device | None = None


def describe(address: str, name: str | None = None) -> Device:
    """Ask the agent at an address what it is; if `name` is given, its certificate must have that name."""
    with Client(address, name=name) as client:
        return client.describe()


def await_pipeline(address: str, device: Device, wait_s: float, report: OnProgress) -> Device:
    """Wait for a draft node that sets its pipeline up; return what it says of itself then.

    Raises:
        PipelineNotReady: when it is not ready within `wait_s` seconds.
    """
    report(device.name, f"waiting for its pipeline, {wait_s:g} s at most (--wait)")
    with Client(address) as client:
        client.await_ready(wait_s, partial(report, device.name))
        return client.describe()
