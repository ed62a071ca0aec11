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
from flowedge.client.clock_offset import Exchange
from flowedge.client.device import Device
from flowedge.client.failure import ended_early, silent
from flowedge.client.request import GenerateArguments, GenerateOptions
from flowedge.client.stubs import agent_stub, generation_stub
from flowedge.client.timelines import exchange_clocks
from flowedge.client.transcript import Chunk, Transcript
from flowedge.net.grpc_status import from_status
from flowedge.security.tls.connection import Connection
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb

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
        """Connects when first used. AccessError then says that another is there than may be.

        timeout_s: the longest a generation may take as a whole.
        silence_s: how long the draft node may send nothing, no sign of life either, before it counts as lost.
        name: what the device has to be called in its cluster; any device of it will do if not given.
        security: the identity to show (see docs/security.md); that of the state directory if not given.
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
        """Starts answering; iterate over the result for the chunks as they are accepted.

        prompt: a user message, to which the model's chat template is applied.
        prompt_ids: tokens as they are, instead of a prompt.
        timeout_s: the longest this generation may take; the client's own limit when not given.
        request_id: what errors and the logs of all devices call this request; one is drawn when not given.
        options: how to answer, as a whole; arguments: fields of GenerateOptions that go before it.
        """
        chosen = replace(options or GenerateOptions(), **arguments)
        request = chosen.to_request(prompt, prompt_ids, request_id)
        stub = generation_stub(self._connection.channel())
        call = stub.Generate(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        return Generation(call, self.address, self._silence_s, request.request_id, self._connection.note)

    def describe(self) -> Device:
        """What the agent is and what it holds."""
        stub = agent_stub(self._connection.channel())
        try:
            reply = stub.Describe(agent_pb2.DescribeRequest(), timeout=self._silence_s)
        except grpc.RpcError as error:
            self._connection.note(error)
            raise from_status(error, self.address) from error
        return Device.from_proto(reply)

    def exchange_clocks(self, count: int) -> list[Exchange]:
        """Ask the agent for its clocks, one question after the other; their round trips are the link's."""
        stub = agent_stub(self._connection.channel())
        return [exchange_clocks(stub, self.address, self._silence_s) for _ in range(count)]

    def close(self) -> None:
        """Ends the connection and every generation on it."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generation(Iterator[Chunk]):
    """One answer on its way: iterate for its chunks; everything else is complete when the iteration ends.

    Raises a FlowEdgeError when the answer cannot be completed: DeviceLostError names the device that closed
    its connection or fell silent, DeadlineError says that the time was up. Each names `request_id`, by which
    the logs of all devices tell what they did for the request.
    """

    def __init__(
        self,
        call: Any,
        address: str,
        silence_s: float,
        request_id: str,
        note: Callable[[grpc.RpcError], None],
    ) -> None:
        """`note` is told of the error that the call ends with."""
        self.request_id = request_id
        self.transcript = Transcript()
        self._address = address
        self._silence_s = silence_s
        self._note = note
        self._call = call
        self._events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None] = queue.SimpleQueue()
        # The thread holds the call and the queue, not this object: dropping it ends the call.
        threading.Thread(
            target=_read, args=(call, self._events), name="flowedge-generation", daemon=True
        ).start()
        weakref.finalize(self, call.cancel)

    @property
    def text(self) -> str:
        """The text so far."""
        return self.transcript.text

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far, without the prompt's."""
        return self.transcript.token_ids

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt as the model sees it."""
        return self.transcript.prompt_ids

    @property
    def seed(self) -> int | None:
        """The seed that was asked for or drawn; known from the first chunk on."""
        return self.transcript.seed

    @property
    def finish_reason(self) -> str | None:
        """ "eos", "stop" or "length"; None while the answer is not complete."""
        return self.transcript.finish_reason

    @property
    def statistics(self) -> dict[str, Any]:
        """What the draft node measured; empty while the answer is not complete."""
        return self.transcript.statistics

    def __next__(self) -> Chunk:
        while True:
            event = self._next_event()
            if event is None:
                raise StopIteration
            chunk = self.transcript.apply(event)
            if chunk is not None:
                return chunk

    def result(self) -> Generation:
        """Waits for the end of the answer and returns it."""
        for _ in self:
            pass
        return self

    def close(self) -> None:
        """Ends the request; harmless when it has ended."""
        self._call.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_event(self) -> pb.GenerateEvent | None:
        if self.finish_reason is not None:
            return None
        try:
            event = self._events.get(timeout=self._silence_s)
        except queue.Empty:
            self._call.cancel()
            raise silent(self._address, self._silence_s).of_request(self.request_id) from None
        if isinstance(event, grpc.RpcError):
            self._note(event)
            raise from_status(event, self._address).of_request(self.request_id) from event
        if event is None:
            raise ended_early(self._address, "the answer was complete").of_request(self.request_id)
        return event


def _read(call: Any, events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None]) -> None:
    try:
        for event in call:
            events.put(event)
    except grpc.RpcError as error:
        events.put(error)
    else:
        events.put(None)
