"""The weights of stages: fetched for a role that the device is given, or before it is given any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flowedge.agent.roles.coordinator import unreported
from flowedge.core.errors import FlowEdgeError
from flowedge.core.log_fields import about
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.model_opener import ModelOpener, ReportFetch
from flowedge.weights.model_request import ModelRequest, OpenedModel

if TYPE_CHECKING:
    from flowedge.agent.holding.stage_content import StageContent
    from flowedge.agent.roles.agent import Agent
    from flowedge.agent.roles.compute_side import ComputeSide

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageWeights:
    """The weights of a stage, for a device that the draft node names the sources to.

    Attributes:
        request: of the stage, with `weights`. config: the settings in it.
    """

    agent: Agent
    request: pb.StageRole
    config: PipelineConfig

    async def open(
        self, side: ComputeSide, content: StageContent, report: ReportFetch, *, ahead: bool = False
    ) -> OpenedModel:
        """Open the model and admit the content; fetch the tensors that are missing.

        ahead: whether nobody waits for them, so that other transfers have most of the network.

        Raises what ModelOpener.open and ComputeSide.admit raise, and ProtocolError for malformed sources.
        """
        agent, request = self.agent, self.request
        settings = agent.config.weights.model_copy(update={"streams": 1} if ahead else {})
        opener = ModelOpener(agent.name, agent.local_weights, settings, agent.run, report)
        return await opener.open(
            ModelRequest.from_proto(
                request.weights,
                self.config.model,
                request.fingerprint,
                content.tensors,
                lambda: content.quantised,
                admit=lambda checkpoint: side.admit(content, request.fingerprint, checkpoint),
            )
        )


class FetchingAhead:
    """Fetches the weights of stages whose place the device may be given, while it has no role.

    A stage whose weights do not fit the device is left out.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._task: asyncio.Task[None] | None = None

    async def begin(self, stages: Sequence[pb.StageRole]) -> None:
        """Begin with the first of the stages, in place of those of the last call.

        Raises:
            BadRequestError: when the settings of a stage are wrong.
        """
        await self.end()
        wanted = [
            StageWeights(self._agent, stage, PipelineConfig.from_json(stage.config))
            for stage in stages
            if stage.HasField("weights")
        ]
        if wanted and self._agent.roles.role is None:
            self._task = asyncio.create_task(self._fetch(wanted))

    async def end(self) -> None:
        """End what is being fetched; what has come stays in the cache."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _fetch(self, wanted: Sequence[StageWeights]) -> None:
        side, unheard = await self._agent.compute_side(), partial(unreported, self._agent.name)
        for weights in wanted:
            request = weights.request
            layers = f"layers {request.layer_start} to {request.layer_stop - 1} of {weights.config.model}"
            try:
                content = side.content_of(request, weights.config)
                (await weights.open(side, content, unheard, ahead=True)).release()
            except FlowEdgeError as error:
                fields = about(event="not_fetched_ahead", reason=str(error))
                _log.info("%s are not fetched ahead: %s", layers, error, extra=fields)
            else:
                _log.info("%s are in the cache", layers, extra=about(event="fetched_ahead"))
