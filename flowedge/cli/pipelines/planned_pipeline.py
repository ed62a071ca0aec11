"""A pipeline that is to serve a command."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.client import Device
from flowedge.client.assembly import PipelineSpec


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

    @property
    def missing(self) -> PipelineSpec | None:
        """What has to be set up; None if the pipeline is ready."""
        return None if self.ready else self.spec
