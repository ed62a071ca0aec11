"""Streams of a pipeline's activity, for blocking code and for asyncio."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc

from flowedge.client.channel import stream_ended
from flowedge.client.watching.activity import PipelineActivity
from flowedge.core.errors import DeadlineError, DeviceLostError, FlowEdgeError
from flowedge.network.deadline import within
from flowedge.v1 import generation_pb2 as pb

ErrorOf = Callable[[grpc.RpcError], FlowEdgeError]
_UNREAD = 256  # messages that wait here for a caller that does not read; further ones wait on the draft node


async def watch_async(
    begin: Callable[[], Awaitable[Any]], address: str, silence_s: float, error_of: ErrorOf
) -> AsyncIterator[PipelineActivity]:
    """Yield the messages of a call; leaving the loop ends the call. Raises what Client.watch raises."""
    call = None
    try:
        call = await begin()
        while True:
            try:
                message = await within(silence_s, call.read(), "no sign of life came")
            except DeadlineError:
                raise _silent(address, silence_s) from None
            if not isinstance(message, pb.PipelineActivity):
                raise stream_ended(address, "the watch was ended")
            yield PipelineActivity.from_proto(message, address)
    except grpc.RpcError as error:
        raise error_of(error) from error
    finally:
        if call is not None:
            call.cancel()


def watch_blocking(
    call: Any, address: str, silence_s: float, error_of: ErrorOf
) -> Iterator[PipelineActivity]:
    """Yield the messages of a call; leaving the loop ends the call. Raises what Client.watch raises."""
    messages: queue.Queue[pb.PipelineActivity | grpc.RpcError | None] = queue.Queue(_UNREAD)
    ended = threading.Event()
    threading.Thread(target=_read, args=(call, messages, ended), name="flowedge-watch", daemon=True).start()
    try:
        while True:
            try:
                message = messages.get(timeout=silence_s)
            except queue.Empty:
                raise _silent(address, silence_s) from None
            if message is None:
                raise stream_ended(address, "the watch was ended")
            if isinstance(message, grpc.RpcError):
                raise error_of(message) from message
            yield PipelineActivity.from_proto(message, address)
    finally:
        ended.set()
        call.cancel()


def _silent(address: str, silence_s: float) -> DeviceLostError:
    return DeviceLostError(address, f"no sign of life for {silence_s:g} s, the limit given by silence_s")


def _read(call: Any, messages: queue.Queue[Any], ended: threading.Event) -> None:
    def put(message: Any) -> bool:
        while not ended.is_set():
            try:
                messages.put(message, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    try:
        for message in call:
            if not put(message):
                return
    except grpc.RpcError as error:
        put(error)
    else:
        put(None)
