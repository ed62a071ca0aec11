"""gRPC method handlers whose functions are wrapped, for interceptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


def wrapped(handler: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The same handler, served by `wrap` of its function, whichever of requests and replies are streams."""
    requests = "stream" if handler.request_streaming else "unary"
    kind = f"{requests}_{'stream' if handler.response_streaming else 'unary'}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(wrap(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer)
