"""The client for ordinary, blocking code: the asyncio client, whose coroutines another thread runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from flowedge.client.activity import PipelineActivity
from flowedge.client.aio import AsyncClient, RequestEvents
from flowedge.client.base_client import BaseClient
from flowedge.client.clock_offset import Exchange
from flowedge.client.conversation import BaseConversation
from flowedge.client.device import Device, DraftNodeStatus
from flowedge.client.loop_thread import ReadAhead, run
from flowedge.client.transcript import Callbacks, Chunk, StreamedTranscript
from flowedge.core.errors import FlowEdgeError
from flowedge.v1 import generation_pb2 as pb

_UNREAD = 256  # activities that wait for a caller that does not read; further ones wait on the draft node


@dataclass(eq=False, repr=False)
class Client(BaseClient["Generation"], AbstractContextManager["Client"]):
    """Asks the draft node at `address`; usable from several threads, and as a context manager.

    with Client("127.0.0.1:7070") as client:
        for chunk in client.generate("Why is the sky blue?"):
            print(chunk.text, end="", flush=True)
    """

    _client: AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client = AsyncClient(
            self.address,
            silence_s=self.silence_s,
            retries=self.retries,
            recovery_s=self.recovery_s,
            alternatives=self.alternatives,
            name=self.name,
            security=self.security,
        )

    def _start(self, request: pb.GenerateRequest, seconds: float, callbacks: Callbacks) -> Generation:
        return Generation(self._client, request, seconds, callbacks)

    def describe(self) -> Device:
        """Ask the agent what it is and which role it has."""
        return run(self._client.describe())

    def watch(self) -> Iterator[PipelineActivity]:
        """Watch what happens in the draft node's pipeline, until the loop over the messages is left.

        A message comes at most each tenth of a second, and at least each second. A caller that reads slowly
        misses activity.

        Raises:
            CapacityError: when too many watch already.
            DeviceError: when the device is not a draft node.
            DeviceLostError: when the pipeline has ended, or the device fell silent.
        """
        run(self._client.connection.channel())  # which raises its errors here
        return ReadAhead(self._client.watch(), _UNREAD)

    def await_ready(self, timeout_s: float, on_reason: Callable[[str], None] = lambda _: None) -> None:
        """Wait until the draft node's pipeline is ready; return at once if it is.

        Args:
            timeout_s: seconds to wait.
            on_reason: called with the reason why the pipeline is not ready, whenever that changes.

        Raises:
            DeviceError: when the device is not a draft node.
            PipelineNotReadyError: when the pipeline is not ready within the time.
        """
        run(self._client.await_ready(timeout_s, on_reason))

    def devices(self) -> list[Device]:
        """Ask the draft node and its stages, in pipeline order, what they are.

        Raises:
            FlowEdgeError: when one of them does not answer.
        """
        return run(self._client.devices())

    def status(self) -> DraftNodeStatus:
        """Ask the draft node what it serves, and for its requests.

        Raises:
            DeviceError: when the agent is not a draft node.
            PipelineNotReadyError: while its pipeline is being set up.
        """
        return run(self._client.status())

    def exchange_clocks(self, count: int) -> list[Exchange]:
        """Ask the agent for its clocks `count` times, one after the other; the round trips are the link's."""
        return run(self._client.exchange_clocks(count))

    def close(self) -> None:
        """End the connection; requests that are running are cancelled."""
        self._cancel_answers()
        run(self._client.close())

    def __exit__(self, *error: object) -> None:
        self.close()


class Generation(StreamedTranscript, Iterator[Chunk], AbstractContextManager["Generation"]):
    """An answer that is arriving: iterate for its chunks, which also add to `text` and `token_ids`.

    Leaving a loop over the chunks before the end cancels the request, as `close` does.

    Each error names `request_id`, by which the logs of all devices tell what they did for the request.

    Raises:
        DeviceLostError: when a device closed its connection or fell silent; the error names the device.
        DeadlineError: when the time for the generation is over.
        FlowEdgeError: for any other reason why the answer cannot be completed.
    """

    def __init__(
        self,
        client: AsyncClient,
        request: pb.GenerateRequest,
        timeout_s: float,
        callbacks: Callbacks,
    ) -> None:
        """Send a request, whose answer may take `timeout_s`."""
        super().__init__(request.request_id, callbacks)
        events = run(_sent(client, request, timeout_s))
        self._events = ReadAhead(events.stream())

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                try:
                    chunk = next(self)
                except StopIteration:
                    return
                yield chunk
        finally:  # also when the loop is left, which frees this generator
            self.close()

    def __next__(self) -> Chunk:
        self._check_not_failed()
        while self.finish_reason is None:
            try:
                chunk = self._take(next(self._events))
            except FlowEdgeError as error:
                if self.finish_reason is not None:  # another thread has called close() meanwhile
                    break
                raise self._failed(error) from error.__cause__
            except CancelledError:
                if self.finish_reason is not None:  # by close()
                    break
                raise
            if chunk is not None:
                return chunk
        raise StopIteration

    def result(self) -> Generation:
        """Wait for the end of the answer and return it."""
        for _ in self:
            pass
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _cancel(self) -> None:
        self._events.close()


Conversation = BaseConversation[Generation]
"""A conversation of a `Client`."""


async def _sent(client: AsyncClient, request: pb.GenerateRequest, timeout_s: float) -> RequestEvents:
    """Send a request, and return its events once it is connected."""
    events = RequestEvents(client, request, timeout_s)
    await events.call
    return events
