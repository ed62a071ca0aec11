"""The health of an agent, by the standard grpc.health.v1 service."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.agent.roles.pipeline_role import PipelineRole

AGENT = "flowedge.v1.Agent"
GENERATION = "flowedge.v1.Generation"
MEASURE = "flowedge.v1.Measure"
PIPELINE = "flowedge.v1.Pipeline"
WEIGHTS = "flowedge.v1.Weights"
SERVICES = (AGENT, GENERATION, MEASURE, PIPELINE, WEIGHTS)


def serving(role: PipelineRole | None, *, draining: bool) -> dict[str, bool]:
    """Return which services can serve now, by name; "" is the agent as a whole.

    The agent and its services Agent and Weights serve from the start until they drain. Generation serves on a
    draft node whose pipeline is ready and whole, Pipeline on a device with a part in such a pipeline, and
    Measure on a device without a role.
    """
    ready = role is not None and role.ready
    asked = {
        "": True,
        AGENT: True,
        GENERATION: ready and isinstance(role, DraftNodeRole),
        MEASURE: role is None,
        PIPELINE: ready,
        WEIGHTS: True,
    }
    return {service: does and not draining for service, does in asked.items()}


class Health:
    """The health service of one agent."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._told: dict[str, bool] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server. It reports no service as serving before `tell` does."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tell(self, services: dict[str, bool]) -> None:
        """Set which services serve, by name; clients that watch are told of a change."""
        for service, does in services.items():
            if self._told.get(service) is not does:
                self._told[service] = does
                await self._servicer.set(service, _STATUS[does])


_STATUS = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
}
