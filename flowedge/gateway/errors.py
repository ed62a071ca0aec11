"""Errors of the gateway as HTTP answers, in the shape that OpenAI's or Ollama's clients read."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from flowedge.core.errors import (
    AccessError,
    BadRequestError,
    CapacityError,
    ContextLengthError,
    DeadlineError,
    DeviceLostError,
    FlowEdgeError,
    PipelineNotReadyError,
    PrefixLostError,
)
from flowedge.gateway.record import CURRENT

INVALID = "invalid_request_error"
SERVER = "server_error"
ENCODINGS = ("gzip", "deflate")  # of bodies
OLLAMA_PATHS = "/api/"
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_EMBEDDINGS = ("/v1/embeddings", "/api/embed", "/api/embeddings")
_BELOW_V1 = ("/chat/completions", "/completions", "/responses", "/models", "/embeddings")
_BELOW_API = ("/chat", "/generate", "/tags", "/show", "/ps", "/version")
_OF_CLASS: tuple[tuple[type[FlowEdgeError], int, str, str | None], ...] = (
    (ContextLengthError, 400, INVALID, "context_length_exceeded"),
    (CapacityError, 400, INVALID, ""),
    (BadRequestError, 400, INVALID, None),
    (AccessError, 403, "permission_error", ""),
    (DeadlineError, 504, "timeout", "timeout"),
    (DeviceLostError, 503, SERVER, ""),
    (PipelineNotReadyError, 503, SERVER, ""),
    (PrefixLostError, 503, SERVER, ""),
)
"""Of a class of errors: status, type and code; with "", the code of the error itself."""

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """An error that a request is answered with.

    Attributes:
        status: of HTTP.
        kind: the "type" of the error.
        param: name of the parameter that is wrong.
        code: a word for programs, such as "model_not_found".
        retry_after_s: seconds after which the same request may succeed.
        allow: methods that the path has, where the request's is none of them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code, self.retry_after_s = param, code, retry_after_s
        self.allow = allow

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status == 415:
            headers["accept-encoding"] = ", ".join(ENCODINGS)
        if self.allow is not None:
            headers["allow"] = self.allow
        return headers

    def response(self, scope: Scope) -> JSONResponse:
        """Return the answer to the request of a scope, in the shape of the endpoint's errors."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        body = {"error": self.message} if path.startswith(OLLAMA_PATHS) else self.body
        return JSONResponse(body, self.status, self.headers)


def busy(what: str) -> ApiError:
    """Return what is answered when there are as many as the settings allow; what: "requests", say."""
    message = f"the gateway has as many {what} as it takes; try later"
    return ApiError(503, message, kind=SERVER, code="busy", retry_after_s=1.0)


class UnknownModelError(ApiError):
    """A model that the gateway does not serve."""

    def __init__(self, model: str, known: list[str]) -> None:
        names = ", ".join(known) or "none so far"
        super().__init__(
            404,
            f"there is no model {model[:200]!r} here; served are: {names}",
            param="model",
            code="model_not_found",
        )


def api_error(error: Exception) -> ApiError:
    """Return what a request is answered with when an error ended it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FlowEdgeError):
        return _of_flowedge(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        kind = _KINDS.get(error.status_code, INVALID if error.status_code < 500 else SERVER)
        allow = (error.headers or {}).get("Allow")
        if allow is not None and "GET" in allow:
            allow = f"{allow}, HEAD"
        return ApiError(error.status_code, str(error.detail), kind=kind, allow=allow)
    _log.error("a request ended with an unexpected error", exc_info=error)
    return ApiError(500, "the gateway failed; its log says why", kind=SERVER, code="internal")


def _of_flowedge(error: FlowEdgeError) -> ApiError:
    text = str(error)
    if isinstance(error, CapacityError) and error.retry_after_s is not None:
        kind, wait_s = "rate_limit_error", error.retry_after_s
        return ApiError(429, text, kind=kind, code="queue_full", retry_after_s=wait_s)
    for cls, status, kind, code in _OF_CLASS:
        if isinstance(error, cls):
            wait = error.retry_after_s or 1.0 if status == 503 else None
            return ApiError(
                status, text, kind=kind, code=error.code if code == "" else code, retry_after_s=wait
            )
    return ApiError(502, text, kind=SERVER, code=error.code)


def no_such_path(scope: Scope) -> ApiError:
    """Return the error of a path that is not served; it says which is meant where the base URL is wrong."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path in _EMBEDDINGS:
        message = (
            "embeddings are not served: models here continue texts; ask a server with a model for embeddings"
        )
        return ApiError(501, message, kind=SERVER, code="not_implemented")
    tail = path.removeprefix("/v1").removeprefix("/v1")
    meant = f"/v1{tail}" if tail.startswith(_BELOW_V1) and path != f"/v1{tail}" else ""
    if not meant and tail.startswith(_BELOW_API):
        meant = f"/api{tail}"
    base = (
        "end the client's base URL with /v1" if meant.startswith("/v1") else "leave /v1 out of the base URL"
    )
    hint = f"the endpoint is {meant}: {base}" if meant else "docs/openai-api.md lists what is served"
    return ApiError(404, f"there is no {path[:200]} here; {hint}", kind=_KINDS[404], code="unknown_path")


def add_handlers(app: FastAPI) -> None:
    """Have an application answer with errors in the shape that the client reads."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        shown = api_error(error)
        if isinstance(error, HTTPException) and error.status_code == 404:
            shown = no_such_path(request.scope)
        record = CURRENT.get()
        if record is not None:
            record.outcome = shown.code or shown.kind
        return shown.response(request.scope)

    for kind in (ApiError, FlowEdgeError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _of_validation(error: RequestValidationError) -> ApiError:
    """Return the error that names the first wrong parameter."""
    detail: Mapping[str, Any] = error.errors()[0]
    if detail["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON", code="json_invalid")
    place = [str(part) for part in detail["loc"] if part != "body"]
    param = ".".join(place) or None
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "there is no such parameter here"
    return ApiError(400, f"{param or 'the body'}: {message}", param=param, code=str(detail["type"]))
