"""GET /openapi.json: the endpoints with what they take and answer, as OpenAPI 3.1 describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from flowedge.gateway.answers.body import RequestBody
from flowedge.gateway.answers.joinable_answers import HEADER, LONGEST_KEY, PATHS
from flowedge.gateway.ollama.chat_body import ChatBody, GenerateBody
from flowedge.gateway.ollama.models import ShowBody
from flowedge.gateway.openai.chat_body import ChatCompletionBody
from flowedge.gateway.openai.completions import CompletionBody
from flowedge.gateway.openai.responses_body import ResponseBody

PATH = "/openapi.json"
_SCHEMAS = "#/components/schemas/"
_JSON, _EVENTS, _LINES = "application/json", "text/event-stream", "application/x-ndjson"
_OPENAI_ANSWER = ("id", "object", "created", "model", "choices", "usage")
_OLLAMA_ANSWER = ("model", "created_at", "done")

BODIES: Mapping[str, type[RequestBody]] = {
    "/v1/chat/completions": ChatCompletionBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponseBody,
    "/api/chat": ChatBody,
    "/api/generate": GenerateBody,
    "/api/show": ShowBody,
}
"""What is posted, by path."""

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": _OPENAI_ANSWER,
    "/v1/completions": _OPENAI_ANSWER,
    "/v1/responses": ("id", "object", "created_at", "status", "model", "output", "usage"),
    "/api/chat": (*_OLLAMA_ANSWER, "message"),
    "/api/generate": (*_OLLAMA_ANSWER, "response"),
    "/v1/models": ("object", "data"),
    "/v1/models/{name}": ("id", "object", "created", "owned_by"),
    "/api/tags": ("models",),
    "/api/ps": ("models",),
    "/api/show": ("details", "capabilities"),
    "/api/version": ("version",),
    "/health": ("status", "version", "models"),
    "/health/live": ("status",),
    "/health/ready": ("status",),
    "/flowedge/v1/cluster": ("models", "pipelines", "others", "opening", "key_required", "may_chat"),
}
"""Fields that a JSON answer always has, by path."""

_TEXT = {"type": "string"}
_EVENT: Mapping[str, Any] = {"type": "object", "required": ["data"], "properties": {"data": _TEXT}}
_LINE: Mapping[str, Any] = {"type": "object", "required": list(_OLLAMA_ANSWER)}
_STREAMS = {  # with the schema of an event or a line, as OpenAPI 3.2 has it
    "/v1/chat/completions": (_EVENTS, _EVENT),
    "/v1/completions": (_EVENTS, _EVENT),
    "/v1/responses": (_EVENTS, _EVENT),
    "/api/chat": (_LINES, _LINE),
    "/api/generate": (_LINES, _LINE),
}
_OTHER_ANSWERS = {  # of no JSON
    "/": "text/*",
    "/static/{path}": "*/*",
    "/metrics": "text/plain",
    "/flowedge/v1/activity": _EVENTS,
}
_NULL = {"type": "null"}
_IDEMPOTENCY_KEY: Mapping[str, Any] = {
    "name": HEADER,
    "in": "header",
    "description": "A request that comes again with its key joins the answer of the first.",
    "schema": {**_TEXT, "minLength": 1, "maxLength": LONGEST_KEY},
}

router = APIRouter()


@router.get(PATH, include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """Return the description of all endpoints."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


def describe(app: FastAPI) -> None:
    """Have an application describe its endpoints, with what FastAPI cannot see."""
    seen = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(seen())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = {
        "Error": _object("error", error=_object("message", "type", "param", "code")),
        "OllamaError": _object("error", error={"type": "string"}),
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _responses(path)
            operation["security"] = [{}, {"key": []}, {"header": []}]
            if path in PATHS:
                operation["parameters"] = [_IDEMPOTENCY_KEY]
            if method == "post":
                operation["requestBody"] = _request_body(path, schemas)
    schemes = {
        "key": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {**document, "components": {"schemas": schemas, "securitySchemes": schemes}}


def _responses(path: str) -> dict[str, Any]:
    if path in _OTHER_ANSWERS:
        content: dict[str, Any] = {_OTHER_ANSWERS[path]: {"schema": _TEXT}}
    else:
        content = {_JSON: {"schema": _object(*ANSWERS.get(path, ()))}}
    if path in _STREAMS:
        kind, item = _STREAMS[path]
        content[kind] = {"itemSchema": item}
    responses = {
        "200": {"description": "The answer.", "content": content},
        "default": {"description": "An error, which the body explains.", "content": _error(path)},
    }
    if path in ("/health", "/health/ready"):
        fields = ANSWERS[path]
        not_ready = {_JSON: {"schema": _object(*fields, "reason")}}
        responses["503"] = {"description": "No pipeline can answer; the reason.", "content": not_ready}
    if path in ("/", "/static/{path}"):
        responses["304"] = {"description": "The browser has this version of the file already."}
    return responses


def _error(path: str) -> dict[str, Any]:
    name = "OllamaError" if path.startswith("/api/") else "Error"
    return {_JSON: {"schema": {"$ref": _SCHEMAS + name}}}


def _request_body(path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return what a path takes; the schemas of its body are added to those of the document."""
    model = BODIES.get(path)
    schema: dict[str, Any] = {"type": "object"}
    if model is not None:
        prefix = f"{model.__name__}."  # two bodies may have parts of the same name
        described = model.model_json_schema(ref_template=f"{_SCHEMAS}{prefix}{{model}}")
        for name, part in described.pop("$defs", {}).items():
            schemas[prefix + name] = _with_nulls(part)
        schemas[model.__name__] = _with_nulls(described, _without_effect(model))
        schema = {"$ref": _SCHEMAS + model.__name__}
    return {"required": True, "content": {_JSON: {"schema": schema}}}


def _without_effect(model: type[RequestBody]) -> dict[str, Any]:
    """Return the properties that change nothing, or may have values only by which nothing changes."""
    ignored: dict[str, Any] = {name: {} for name in sorted({*model.ignored, *model.without_effect})}
    off = {name: {"enum": [*values, None, False, "", [], {}]} for name, values in model.unsupported.items()}
    return ignored | off


def _with_nulls(schema: dict[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object whose fields may be null, as if they were left out."""
    if "properties" not in schema:
        return schema
    required = schema.get("required", [])
    properties = {
        name: value if name in required else {"anyOf": [value, _NULL]}
        for name, value in schema["properties"].items()
    }
    return {**schema, "properties": {**properties, **(more or {})}}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}
