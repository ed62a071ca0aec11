"""Routes whose errors have Ollama's shape."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from flowedge.core.errors import FlowEdgeError
from flowedge.serving.errors import ApiError, api_error

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OllamaRoute(APIRoute):
    """A route that answers errors with {"error": message}; errors of streams come the same way."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_with_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, FlowEdgeError) as error:
                return error_response(api_error(error))

        return handle_with_errors


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse({"error": error.message}, error.status, error.headers)
