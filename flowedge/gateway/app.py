"""The web application of a gateway."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from flowedge.gateway import ollama, openai, status_routes
from flowedge.gateway.errors import add_handlers
from flowedge.gateway.http.endpoints import EndpointNames
from flowedge.gateway.http.middleware import RequestMiddleware
from flowedge.gateway.page import routes as page
from flowedge.gateway.state import Gateway
from flowedge.version import VERSION

__all__ = ["Gateway", "make_app"]

ROUTERS: tuple[APIRouter, ...] = (
    status_routes.router,
    status_routes.models_router,
    openai.router,
    ollama.router,
    page.router,
)
"""The routers of all endpoints; the first that has a route for a path answers."""
_EXPOSED = ["x-request-id", "retry-after"]


def make_app(gateway: Gateway) -> FastAPI:
    """Return the application that answers with the state of `gateway`."""
    app = FastAPI(title="FlowEdge", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.gateway = gateway
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(RequestMiddleware, gateway=gateway, endpoints=EndpointNames(app.routes))
    origins = gateway.settings.http.cors_origins
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
    return app
