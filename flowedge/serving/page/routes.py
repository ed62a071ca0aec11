"""The page at /, its files, and what it is told of the cluster."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from flowedge.serving.access.caller import ApiCaller
from flowedge.serving.errors import ApiError
from flowedge.serving.page.feed import feed_of
from flowedge.serving.page.static_files import static_files
from flowedge.serving.streams import event_stream

router = APIRouter()
INDEX = "index.html"


@router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return static_files()[INDEX].response(request)


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """Return a file of the page; 404 if there is none of this path."""
    found = static_files().get(path)
    if found is None:
        raise ApiError(404, f"the page has no file {path[:200]!r}", kind="not_found_error")
    return found.response(request)


@router.get("/flowedge/v1/cluster")
async def cluster(request: Request) -> dict[str, Any]:
    """Return the pipelines and their devices, which everyone who can connect may see.

    `may_chat` says whether the request has shown a key, or needs none.
    """
    feed = feed_of(request.app)
    return feed.for_reader(await feed.cluster(), _reader(request))


@router.get("/flowedge/v1/activity")
async def activity(request: Request) -> Response:
    """Stream changes of the cluster and the activity of the pipelines."""
    return event_stream(feed_of(request.app).events(_reader(request)), request)


def _reader(request: Request) -> ApiCaller | None:
    caller = request.state.caller
    return caller if isinstance(caller, ApiCaller) else None
