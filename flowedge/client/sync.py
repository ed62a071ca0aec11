"""The client for ordinary, blocking code."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from flowedge.client.base_client import BaseClient, OnWaiting, StreamedTranscript
from flowedge.client.channel import CHANNEL_OPTIONS
from flowedge.client.chat.messages import ChatMessage, checked_messages
from flowedge.client.chat.tools import AUTO, ToolOffer
from flowedge.client.clock_offset import Exchange, exchange_clocks
from flowedge.client.conversations.conversation import BaseConversation
from flowedge.client.device import Device
from flowedge.client.request import GenerateArguments, GenerateOptions, chosen_options
from flowedge.client.status import DraftNodeStatus
from flowedge.client.transcript import Chunk
from flowedge.client.watching.activity import PipelineActivity
from flowedge.client.watching.streams import watch_blocking
from flowedge.cluster.tls.channels import Connection
from flowedge.core.errors import FlowEdgeError
from flowedge.v1 import agent_pb2
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.agent_pb2_grpc import AgentStub
from flowedge.v1.generation_pb2_grpc import GenerationStub

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(eq=False, repr=False)
class Client(BaseClient, AbstractContextManager["Client"]):
    """Asks the draft node at `address`; usable from several threads, and as a context manager.

    with Client("127.0.0.1:7070") as client:
        for chunk in client.generate("Why is the sky blue?"):
            print(chunk.text, end="", flush=True)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._connection: Connection = Connection(
            self.address, CHANNEL_OPTIONS, name=self.name, security=self.security
        )

    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        text: str | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> Generation:
        """Start an answer; iterate over the result for its chunks as they are accepted.

        Args:
            prompt: a user message, to which the model's chat template is applied.
            prompt_ids: token ids to use unchanged, instead of a prompt.
            text: text that the model continues, instead of a prompt: encoded with the tokenizer's special
                tokens, without the chat template.
            timeout_s: seconds that this generation may take; the client's limit if None.
            request_id: the name of this request in errors and in the logs of all devices; drawn if None.
            options: how to answer; `arguments` replace single fields of it.
            on_waiting: called for each new place of the request among those that wait for room, by the code
                that iterates over the result.

        Raises:
            BadRequestError: when there is no such option, or its value is wrong, before anything is sent.
            AccessError: when the peer's certificate does not fit.
        """
        seconds = self.seconds_for(timeout_s)
        request = chosen_options(options, arguments).to_request(prompt, prompt_ids, request_id, text=text)
        return self._start(request, seconds, on_waiting)

    def chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = AUTO,
        parallel_tool_calls: bool = True,
        template_values: Mapping[str, Any] | None = None,
        parse: bool = True,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        **arguments: Unpack[GenerateArguments],
    ) -> Generation:
        """Start the next message of a conversation; the other arguments are those of `generate`.

        Args:
            messages: the conversation, which ends with a message of the user or with the result of a tool.
                Dicts have OpenAI's form.
            tools: what the model may call, as dicts of OpenAI's form.
            tool_choice: "auto"; "none" to hide the tools; "required" for a call of any tool; or the name of
                the tool to call.
            parallel_tool_calls: whether the answer may call several tools.
            template_values: further values for the model's chat template, such as {"enable_thinking": False}.
            parse: whether reasoning and tool calls are separated from the text of the answer.

        Raises what `generate` raises; BadRequestError also when the conversation or a tool is malformed.
        """
        seconds = self.seconds_for(timeout_s)
        offer = ToolOffer(tools, tool_choice, parallel_tool_calls, template_values)
        chosen = chosen_options(options, arguments)
        request = chosen.to_chat_request(checked_messages(messages), offer, request_id, parse=parse)
        return self._start(request, seconds, on_waiting)

    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        keeps_partial: bool = False,
        **arguments: Any,
    ) -> Conversation:
        """Begin a conversation, which keeps its history.

        Args:
            system: a system message, for models whose chat template takes one.
            tools: what the model may call, as dicts of OpenAI's form.
            keeps_partial: whether an answer that fails or is cancelled is kept, as far as it came.
            arguments: of `chat`, for each question.
        """
        return Conversation(self.chat, system=system, tools=tools, keeps_partial=keeps_partial, **arguments)

    def _start(self, request: pb.GenerateRequest, seconds: float, on_waiting: OnWaiting | None) -> Generation:
        def begin(seconds: float) -> Any:
            return GenerationStub(self._connection.channel()).Generate(request, timeout=seconds)

        return Generation(self, request.request_id, seconds, begin, on_waiting)

    def describe(self) -> Device:
        """Ask the agent what it is and which role it has."""
        stub = AgentStub(self._connection.channel())
        try:
            reply = stub.Describe(agent_pb2.DescribeRequest(), timeout=self.silence_s)
        except grpc.RpcError as error:
            raise self.description_error(error) from error
        return Device.from_proto(reply)

    def watch(self) -> Iterator[PipelineActivity]:
        """Watch what happens in the draft node's pipeline, until the loop over the messages is left.

        A message comes at most each tenth of a second, and at least each second. A caller that reads slowly
        misses activity.

        Raises:
            CapacityError: when too many watch already.
            DeviceError: when the device is not a draft node.
            DeviceLostError: when the pipeline has ended, or the device fell silent.
        """
        call = GenerationStub(self._connection.channel()).Watch(pb.WatchRequest())
        return watch_blocking(call, self.address, self.silence_s, self.error_of)

    def devices(self) -> list[Device]:
        """Ask the draft node and its stages, in pipeline order, what they are.

        Raises:
            FlowEdgeError: when one of them does not answer.
        """
        first = self.describe()

        def describe(address: str) -> Device:
            with Client(**self.other_client(address)) as client:
                return client.describe()

        if not first.stage_addresses:
            return [first]
        with ThreadPoolExecutor(len(first.stage_addresses)) as asking:
            return [first, *asking.map(describe, first.stage_addresses)]

    def status(self) -> DraftNodeStatus:
        """Ask the draft node what it serves, and for its requests.

        Raises:
            DeviceError: when the agent is not a draft node.
        """
        return DraftNodeStatus.of(self.describe())

    def exchange_clocks(self, count: int) -> list[Exchange]:
        """Ask the agent for its clocks `count` times, one after the other; the round trips are the link's."""
        stub = AgentStub(self._connection.channel())
        return [exchange_clocks(stub, self.address, self.silence_s) for _ in range(count)]

    def close(self) -> None:
        """End the connection; requests that are running are cancelled."""
        self.cancel_answers()
        self._connection.close()

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
        client: Client,
        request_id: str,
        timeout_s: float,
        begin: Callable[[float], Any],
        on_waiting: OnWaiting | None = None,
    ) -> None:
        """begin: sends the request, which may take so many seconds, and returns the call."""
        super().__init__(client, request_id, timeout_s, on_waiting)
        self._begin = begin
        self._ended = threading.Event()
        self._call = self._send(timeout_s)

    def _send(self, seconds: float) -> Any:
        call = self._begin(seconds)
        self._events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None] = queue.SimpleQueue()
        # The thread holds the call and the queue, not this object: dropping it ends the call.
        threading.Thread(
            target=_read, args=(call, self._events), name="flowedge-generation", daemon=True
        ).start()
        weakref.finalize(self, call.cancel)
        return call

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
                chunk = self._take(self._next_event())
            except FlowEdgeError as error:
                if self.finish_reason is not None:  # another thread has called close() meanwhile
                    break
                if self._send_again(error):
                    continue
                raise self._failed(error) from error.__cause__
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

    def _send_again(self, error: FlowEdgeError) -> bool:
        """Send the request again after a pause, if it may be; return whether to read on."""
        pause_s = self._pause_before_retry(error)
        if pause_s is None:
            return False
        if not self._ended.wait(pause_s):
            self._call = self._send(self._left_s())
            if self.finish_reason is not None:  # closed meanwhile
                self._call.cancel()
        return True

    def _cancel(self) -> None:
        self._ended.set()
        self._call.cancel()

    def _next_event(self) -> pb.GenerateEvent:
        try:
            event = self._events.get(timeout=self._client.silence_s)
        except queue.Empty:
            raise self._silent() from None
        if isinstance(event, grpc.RpcError):
            raise self._error_of(event) from event
        if event is None:
            raise self._ended_early()
        return event


class Conversation(BaseConversation[Generation]):
    """A conversation of a `Client`."""


def _read(call: Any, events: queue.SimpleQueue[pb.GenerateEvent | grpc.RpcError | None]) -> None:
    try:
        for event in call:
            events.put(event)
    except grpc.RpcError as error:
        events.put(error)
    else:
        events.put(None)
