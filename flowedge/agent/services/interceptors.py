"""Interceptors in front of all services: limits on calls, and requests that cannot be read."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from flowedge.agent.config.agent_config import AgentLimits
from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.net.grpc_handlers import Context, within_context
from flowedge.net.grpc_status import abort

Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class CallLimits(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits, with a CapacityError; called on the event loop.

    A peer is an address; a stream is a call whose requests are a stream.
    """

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits
        self._calls = 0
        self._streams: Counter[str] = Counter()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        counted = partial(self._counted, streaming=handler.request_streaming)
        return within_context(handler, handler_call_details.method, counted)

    @contextlib.asynccontextmanager
    async def _counted(self, context: Context, streaming: bool) -> AsyncIterator[None]:
        limits, peer = self._limits, context.peer().rpartition(":")[0]
        if self._calls >= limits.calls:
            await abort(context, CapacityError(f"{limits.calls} calls are going on here already; try later"))
        if streaming and self._streams[peer] >= limits.streams_per_peer:
            error = f"{limits.streams_per_peer} streams of your address are open here already; close one"
            await abort(context, CapacityError(error))
        self._calls += 1
        self._streams[peer] += streaming
        try:
            yield
        finally:
            self._calls -= 1
            self._streams[peer] -= streaming
            if not self._streams[peer]:
                del self._streams[peer]


class UnreadableRequests(grpc.aio.ServerInterceptor):
    """Ends a call whose one request cannot be read with a ProtocolError, and without a traceback in the log.

    Calls whose requests are a stream are left alone.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        kind = f"unary_{'stream' if handler.response_streaming else 'unary'}"
        serve, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")

        async def answer(data: bytes, context: Any) -> Any:
            try:
                request = handler.request_deserializer(data)
            except DecodeError as error:
                method = handler_call_details.method
                await abort(context, ProtocolError(f"{len(data)} bytes are no request of {method}: {error}"))
            result = serve(request, context)
            if inspect.isawaitable(result):
                return await result
            async for reply in result:
                await context.write(reply)
            return None

        # Without a deserialiser the request comes as bytes.
        return make(answer, response_serializer=handler.response_serializer)
