"""Whether the gateway lives and can answer, its metrics, and the list of models in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from flowedge.gateway.access.caller import authorised
from flowedge.gateway.pipelines.served import ServedModel
from flowedge.gateway.state import TheGateway
from flowedge.version import VERSION

PATHS = ("/health", "/health/live", "/health/ready", "/metrics")

router = APIRouter()
models_router = APIRouter(prefix="/v1", dependencies=[Depends(authorised)])


@router.get("/health/live")
async def live() -> dict[str, str]:
    """Answer while the process does."""
    return {"status": "live"}


@router.get("/health/ready")
async def ready(gateway: TheGateway) -> JSONResponse:
    """Answer 200 while a pipeline can answer, else 503 with the reason."""
    problem = gateway.problem
    if problem:
        return JSONResponse({"status": "not ready", "reason": problem}, 503)
    return JSONResponse({"status": "ready"})


@router.get("/health")
async def health(gateway: TheGateway) -> JSONResponse:
    """Answer as /health/ready does, with the models and their pipelines."""
    problem = gateway.problem
    models = {
        model.name: {
            "pipelines": list(model.pipelines),
            "ready": list(model.ready),
            "recovering": list(model.recovering),
            "problems": dict(model.problems),
        }
        for model in gateway.pipelines.models()
    }
    status = {"status": "not ready", "reason": problem} if problem else {"status": "ready"}
    return JSONResponse({**status, "version": VERSION, "models": models}, 503 if problem else 200)


@router.get("/metrics")
async def metrics(request: Request, gateway: TheGateway) -> Response:
    """Answer with the metrics; beyond loopback a key is needed unless access.open_metrics is set."""
    settings = gateway.settings
    if not (settings.http.is_local or settings.access.open_metrics):
        authorised(request)
    return Response(generate_latest(gateway.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@models_router.get("/models")
async def models(gateway: TheGateway) -> dict[str, Any]:
    """Return all models, each also by its aliases."""
    served = [
        _model(name, model) for model in gateway.pipelines.models() for name in (model.name, *model.aliases)
    ]
    return {"object": "list", "data": served}


@models_router.get("/models/{name:path}")
async def model(name: str, gateway: TheGateway) -> dict[str, Any]:
    """Return one model; 404 if there is none of the name."""
    return _model(name, gateway.pipelines.model(name))


def _model(name: str, model: ServedModel) -> dict[str, Any]:
    extension: dict[str, Any] = {"pipelines": list(model.pipelines), "ready": list(model.ready)}
    if name != model.name:
        extension["alias_of"] = model.name
    if model.context is not None:
        extension["context_tokens"] = model.context
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "flowedge",
        "flowedge": extension,
    }
