"""What Ollama's clients ask about models, and whether anybody is there."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any, ClassVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from flowedge.gateway.access.caller import authorised
from flowedge.gateway.answers.answer_request import body_of
from flowedge.gateway.answers.body import RequestBody
from flowedge.gateway.errors import ApiError
from flowedge.gateway.pipelines.pool import PipelinePool
from flowedge.gateway.pipelines.served import ServedModel
from flowedge.gateway.state import gateway_of

_TAG = ":latest"


def known_name(pool: PipelinePool, model: str) -> str:
    """Return the name that the pool knows for a model's name, which may end with the tag of the newest."""
    known = {name for served in pool.models() for name in (served.name, *served.aliases)}
    bare = model.removesuffix(_TAG)
    return bare if model not in known and bare in known else model


OLLAMA_VERSION = "0.12.11"  # whose API this is; clients ask for it before they use what is new in it
_FOREVER = "9999-12-31T23:59:59Z"  # models are not unloaded

router = APIRouter()
_with_key = [Depends(authorised)]


class ShowBody(RequestBody):
    """What a client asks of /api/show.

    Attributes:
        name: the model, as old clients call it.
    """

    ignored: ClassVar[frozenset[str]] = frozenset({"verbose"})

    model: str = ""
    name: str = ""


@router.get("/api/version")
async def version() -> dict[str, str]:
    return {"version": OLLAMA_VERSION}


@router.get("/api/tags", dependencies=_with_key)
async def tags(request: Request) -> dict[str, Any]:
    """Return the models."""
    served = gateway_of(request).pipelines.models()
    return {"models": [_entry(name, model) for model in served for name in (model.name, *model.aliases)]}


@router.get("/api/ps", dependencies=_with_key)
async def running(request: Request) -> dict[str, Any]:
    """Return the models that can answer now."""
    return {
        "models": [
            {
                **_entry(model.name, model),
                "size_vram": 0,
                "expires_at": _FOREVER,
                "context_length": model.context or 0,
            }
            for model in gateway_of(request).pipelines.models()
            if model.ready
        ]
    }


@router.post("/api/show", dependencies=_with_key)
async def show(request: Request) -> Response:
    """Return what is known of a model."""
    body = await body_of(request, ShowBody)
    name = body.model or body.name
    if not name:
        raise ApiError(400, "model is missing", param="model")
    pool = gateway_of(request).pipelines
    model = pool.model(known_name(pool, name))
    entry = _entry(name, model)
    family = model.family or "flowedge"
    known: dict[str, Any] = {"general.architecture": family, "general.basename": model.name}
    if model.context is not None:
        known[f"{family}.context_length"] = model.context
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": entry["details"],
            "model_info": known,
            "capabilities": ["completion", *model.capabilities],
            "modified_at": entry["modified_at"],
        }
    )


def _entry(name: str, model: ServedModel) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "name": name,
        "model": name,
        "modified_at": created,
        "size": 0,
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "flowedge",
            "family": model.family,
            "families": [model.family] if model.family else [],
            "parameter_size": "",
            "quantization_level": "" if model.quant == "none" else model.quant,
        },
    }
