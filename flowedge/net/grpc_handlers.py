"""Wrapping of gRPC method handlers, for interceptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


def wrapped(handler: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """Return the handler with its function replaced by `wrap(function)`; streams stay streams."""
    requests = "stream" if handler.request_streaming else "unary"
    kind = f"{requests}_{'stream' if handler.response_streaming else 'unary'}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(wrap(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer)
