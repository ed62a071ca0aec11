"""A draft node that sends the events of a test's script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from flowedge.core.errors import FlowEdgeError
from flowedge.core.generate_options import GenerateOptions
from flowedge.network.grpc_status import to_status
from flowedge.v1 import agent_pb2, agent_pb2_grpc, generation_pb2_grpc
from flowedge.v1 import generation_pb2 as pb

ENDED_S = 10.0  # in which a draft node hears that its client has gone

Script = Callable[[pb.GenerateRequest, grpc.ServicerContext], Iterable[pb.GenerateEvent]]


def options_of(request: pb.GenerateRequest) -> GenerateOptions:
    """Return the options that a client has sent."""
    return GenerateOptions.from_json(request.options)


def fail(context: grpc.ServicerContext, error: FlowEdgeError) -> None:
    """End the answer of a script with an error, as a draft node does."""
    status, details, metadata = to_status(error)
    context.set_trailing_metadata(metadata)
    context.abort(status, details)


class FakeNode(generation_pb2_grpc.GenerationServicer, agent_pb2_grpc.AgentServicer):
    """Serves both services of a draft node; keeps the requests it got."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[pb.GenerateRequest] = []

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.requests.append(request)
        yield from self.script(request, context)

    def Describe(self, request: Any, context: Any) -> agent_pb2.Device:  # noqa: N802
        return agent_pb2.Device(id="1", name="fake", role="draft node", stage_addresses=["a:1"], layer_stop=3)


class EndlessAnswer:
    """A draft node's script: two tokens and then signs of life; `ended` is set when its client has gone."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        context.add_callback(self.ended.set)
        yield started(7)
        yield chunk("Hel", 5)
        yield chunk("lo", 6)
        while context.is_active():
            time.sleep(0.02)
            yield keep_alive()


@contextmanager
def serving(script: Script) -> Iterator[tuple[FakeNode, str]]:
    """The node and its address."""
    node = FakeNode(script)
    server = grpc.server(ThreadPoolExecutor(4))
    generation_pb2_grpc.add_GenerationServicer_to_server(node, server)  # type: ignore[no-untyped-call]
    agent_pb2_grpc.add_AgentServicer_to_server(node, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield node, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait(5)


def started(seed: int = 7, waited_s: float = 0.0) -> pb.GenerateEvent:
    return pb.GenerateEvent(started=pb.Started(session="s", seed=seed, prompt_ids=[1, 2], waited_s=waited_s))


def waiting(position: int, expected_s: float = 1.0) -> pb.GenerateEvent:
    return pb.GenerateEvent(waiting=pb.Waiting(position=position, expected_s=expected_s))


def chunk(text: str, *token_ids: int) -> pb.GenerateEvent:
    return pb.GenerateEvent(chunk=pb.Chunk(text=text, token_ids=token_ids))


def finished(reason: str = "eos", statistics: str = '{"rounds": 2}') -> pb.GenerateEvent:
    return pb.GenerateEvent(finished=pb.Finished(reason=reason, statistics_json=statistics))


def keep_alive() -> pb.GenerateEvent:
    return pb.GenerateEvent(keep_alive=pb.KeepAlive())
