"""The list of models, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from flowedge.serving.access.caller import authorised
from flowedge.serving.pipelines.served import ServedModel
from flowedge.serving.state import TheGateway

router = APIRouter(prefix="/v1", dependencies=[Depends(authorised)])


@router.get("/models")
async def models(gateway: TheGateway) -> dict[str, Any]:
    """Return all models, each also by its aliases."""
    served = [
        _model(name, model) for model in gateway.pipelines.models() for name in (model.name, *model.aliases)
    ]
    return {"object": "list", "data": served}


@router.get("/models/{name:path}")
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
