"""The page at /, its files, and what it is told of the cluster."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.errors import ApiError
from flowedge.gateway.page.feed import feed_of
from flowedge.gateway.streams import event_stream

# Everything comes from the gateway itself, and no script or style is written into the page.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # A browser asks whether the file has changed each time, and gets 304: a new version is never mixed with
    # an old one.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class StaticFile:
    """A file of the page.

    Attributes:
        tag: changes with the content.
    """

    content: bytes
    media_type: str
    tag: str

    def response(self, request: Request) -> Response:
        """Return the answer to a request for the file."""
        headers = {**_HEADERS, "etag": self.tag}
        known = request.headers.get("if-none-match", "")
        if self.tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all files by their paths below `static`."""
    directory = Path(__file__).with_name("static")
    found: dict[str, StaticFile] = {}
    for path in sorted(directory.rglob("*")):
        media_type = _TYPES.get(path.suffix.removeprefix("."))
        if media_type is not None:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[path.relative_to(directory).as_posix()] = StaticFile(content, media_type, tag)
    return found


router = APIRouter()
INDEX = "index.html"


@router.get("/")
async def index(request: Request) -> Response:
    """Return the page; programs that look for Ollama are told that it runs."""
    if "text/html" not in request.headers.get("accept", "text/html"):
        return Response("Ollama is running", media_type=_TYPES["txt"])
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
