"""Wrapping of gRPC method handlers, for interceptors."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def within_context(
    handler: Any, method: str, enter: Callable[[Context], AbstractAsyncContextManager[None]]
) -> Any:
    """Return the handler of a method with each call inside of `enter(context)`; streams stay streams.

    Raises:
        TypeError: when the method is served by a function that is not async.
    """
    requests = "stream" if handler.request_streaming else "unary"
    kind = f"{requests}_{'stream' if handler.response_streaming else 'unary'}"
    serve = getattr(handler, kind)

    async def replies(request: Any, context: Context) -> AsyncIterator[Any]:
        async with enter(context), aclosing(serve(request, context)) as found:
            async for reply in found:
                yield reply

    async def reply(request: Any, context: Context) -> Any:
        async with enter(context):
            return await serve(request, context)

    if not (inspect.isasyncgenfunction(serve) or inspect.iscoroutinefunction(serve)):
        raise TypeError(f"{method} is served by a function that is not async")
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapped = replies if inspect.isasyncgenfunction(serve) else reply
    return make(wrapped, handler.request_deserializer, handler.response_serializer)
