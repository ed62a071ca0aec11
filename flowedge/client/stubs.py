"""Typed entries into the generated stubs, which carry no types."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from flowedge.v1 import agent_pb2_grpc, generation_pb2_grpc, measure_pb2_grpc


def agent_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The Agent service over a channel of either kind."""
    return agent_pb2_grpc.AgentStub(channel)


def measure_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The Measure service over a channel of either kind."""
    return measure_pb2_grpc.MeasureStub(channel)


def generation_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The Generation service over a channel of either kind."""
    return generation_pb2_grpc.GenerationStub(channel)
