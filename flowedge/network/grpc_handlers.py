"""gRPC method handlers that see the call before its request is received."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Enter: TypeAlias = Callable[[AsyncIterator[Any], Context], AbstractAsyncContextManager[Any]]
"""Called with the requests and the context of a call; it gives the service its first argument."""


def entered_first(handler: Any, method: str, enter: Enter, parse: Callable[[bytes], Any] | None) -> Any:
    """Return a handler whose calls run inside of `enter`, and receive nothing before that.

    gRPC receives the request of a unary handler before any code of ours runs. So the new handler takes a
    stream of requests, which is the same on the wire: its context exists first, and until `context.read()` is
    called the flow control of HTTP/2 keeps the caller from sending more than a window.

    Args:
        enter: gives what the service takes as its first argument.
        parse: the deserialiser of a stream's messages; None for messages as bytes.

    Raises:
        TypeError: when the method is served by a function that is not async.
    """
    requests = "stream" if handler.request_streaming else "unary"
    replies = "stream" if handler.response_streaming else "unary"
    serve = getattr(handler, f"{requests}_{replies}")

    async def reply(stream: AsyncIterator[Any], context: Context) -> Any:
        async with enter(stream, context) as argument:
            return await serve(argument, context)

    async def reply_all(stream: AsyncIterator[Any], context: Context) -> None:
        async with enter(stream, context) as argument, aclosing(serve(argument, context)) as found:
            async for each in found:
                await context.write(each)

    if not (inspect.isasyncgenfunction(serve) or inspect.iscoroutinefunction(serve)):
        raise TypeError(f"{method} is served by a function that is not async")
    make = getattr(grpc, f"stream_{replies}_rpc_method_handler")
    return make(reply_all if inspect.isasyncgenfunction(serve) else reply, parse, handler.response_serializer)
