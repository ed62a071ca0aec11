"""A pipeline that is to serve a command, and the error where the network has no agent for one."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.client import Device
from flowedge.client.assembly import PipelineSpec
from flowedge.core.errors import DeadlineError


class NoAgentFoundError(DeadlineError):
    """No agent is announced on the network."""


@dataclass(frozen=True)
class PlannedPipeline:
    """The pipeline that is to serve a command.

    Attributes:
        draft_node: address.
        spec: the pipeline as a whole; None if only its draft node was named.
        ready: whether it is set up already.
        found: the draft node as the network shows it; None if it was named or started here.
    """

    draft_node: str
    spec: PipelineSpec | None
    ready: bool
    found: Device | None = None
