"""Requests that are no message of their call: an error that says so, in place of a traceback in the log."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from flowedge.core.errors import ProtocolError
from flowedge.net.grpc_status import abort


class UnreadableRequests(grpc.aio.ServerInterceptor):
    """Ends a call whose one request cannot be read with a ProtocolError; streams are left alone."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        if handler.response_streaming:
            serve, make = handler.unary_stream, grpc.unary_stream_rpc_method_handler
        else:
            serve, make = handler.unary_unary, grpc.unary_unary_rpc_method_handler

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
