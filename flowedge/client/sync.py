"""The client for ordinary, blocking code."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.channel import CHANNEL_OPTIONS, SILENCE_S, check_address
from flowedge.client.clock_offset import Exchange, exchange_clocks
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.transcript import Chunk, StreamedTranscript
from flowedge.net.grpc_status import from_status
from flowedge.security.tls.channels import Connection
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.generation_pb2_grpc import GenerationStub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from flowedge.security.process import Security


class Client:
    """Asks the draft node at `address`; usable from several threads, and as a context manager.

    with Client("127.0.0.1:7070") as client:
        for chunk in client.generate("Why is the sky blue?"):
            print(chunk.text, end="", flush=True)
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 600.0,
        silence_s: float = SILENCE_S,
        name: str | None = None,
        security: Security | None = None,
    ) -> None:
        """Connects with the first call, which raises AccessError if the peer's certificate does not fit.

        Args:
            timeout_s: seconds that a whole generation may take.
            silence_s: seconds without any message, signs of life included, after which a device is lost.
            name: the name that the device's certificate must have; any name of the cluster if None.
            security: the credentials to show (docs/security.md); from the state directory if None.

        Raises:
            BadRequestError: when the form of the address is not host:port.
        """
        self.address = check_address(address)
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._connection = Connection(address, CHANNEL_OPTIONS, name=name, security=security)

    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> Generation:
        """Start an answer; iterate over the result for its chunks as they are accepted.

        Args:
            prompt: a user message, to which the model's chat template is applied.
            prompt_ids: token ids to use unchanged, instead of a prompt.
            timeout_s: seconds that this generation may take; the client's limit if None.
            request_id: the name of this request in errors and in the logs of all devices; drawn if None.
            options: how to answer; `arguments` replace single fields of it.

        Raises:
            BadRequestError: when an option is out of range, before anything is sent.
        """
        chosen = replace(options or GenerateOptions(), **arguments)
        request = chosen.to_request(prompt, prompt_ids, request_id)
        stub = GenerationStub(self._connection.channel())
        call = stub.Generate(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        return Generation(call, self.address, self._silence_s, request.request_id, self._connection.note)

    def describe(self) -> Device:
        """Ask the agent what it is and which role it has."""
        stub = AgentStub(self._connection.channel())
        try:
            reply = stub.Describe(agent_pb2.DescribeRequest(), timeout=self._silence_s)
        except grpc.RpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        return Device.from_proto(reply)

    def exchange_clocks(self, count: int) -> list[Exchange]:
        """Ask the agent for its clocks `count` times, one after the other; the round trips are the link's."""
        stub = AgentStub(self._connection.channel())
        return [exchange_clocks(stub, self.address, self._silence_s) for _ in range(count)]

    def close(self) -> None:
        """End the connection and every generation on it."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generation(StreamedTranscript, Iterator[Chunk]):
    """An answer that is arriving: iterate for its chunks, which also add to `text` and `token_ids`.

    Each error names `request_id`, by which the logs of all devices tell what they did for the request.

    Raises:
        DeviceLostError: when a device closed its connection or fell silent; the error names the device.
        DeadlineError: when the time for the generation is over.
        FlowEdgeError: for any other reason why the answer cannot be completed.
    """

    def __init__(
        self,
        call: Any,
        address: str,
        silence_s: float,
        request_id: str,
        on_failure: Callable[[grpc.RpcError], None],
    ) -> None:
        super().__init__(address, silence_s, request_id, on_failure)
        self._call = call
        self._events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None] = queue.SimpleQueue()
        # The thread holds the call and the queue, not this object: dropping it ends the call.
        threading.Thread(
            target=_read, args=(call, self._events), name="flowedge-generation", daemon=True
        ).start()
        weakref.finalize(self, call.cancel)

    def __next__(self) -> Chunk:
        while self.finish_reason is None:
            chunk = self.apply(self._next_event())
            if chunk is not None:
                return chunk
        raise StopIteration

    def result(self) -> Generation:
        """Wait for the end of the answer and return it."""
        for _ in self:
            pass
        return self

    def close(self) -> None:
        """End the request; has no effect when it has ended."""
        self._call.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_event(self) -> pb.GenerateEvent:
        try:
            event = self._events.get(timeout=self._silence_s)
        except queue.Empty:
            self._call.cancel()
            raise self._silent() from None
        if isinstance(event, grpc.RpcError):
            raise self._failed(event) from event
        if event is None:
            raise self._ended_early()
        return event


def _read(call: Any, events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None]) -> None:
    try:
        for event in call:
            events.put(event)
    except grpc.RpcError as error:
        events.put(error)
    else:
        events.put(None)
