"""The fields that a log line may have beside its message; their names are part of the interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from flowedge.core.request_id import request_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

ATTRIBUTE = "flowedge_fields"  # of a log record


class Fields(TypedDict, total=False):
    """What a line is about; seconds, bytes and counts are plain numbers."""

    event: str  # the kind of event, such as "session_opened"; lines of one event have the same fields
    pipeline: str
    session: str
    request: str
    role: str
    peer: str  # a device or an address
    lane: str
    reason: str
    code: str  # of the error
    model: str
    quant: str
    layers: str  # "0-7"
    strategy: str
    prompt_tokens: int
    new_tokens: int
    cache_rows: int
    segments: int
    rows_computed: int
    rows_trimmed: int
    sessions: int
    seconds: float
    busy_s: float  # of the compute lane
    first_token_s: float | None  # None: there was none
    bytes: int
    address: str
    version: str
    protocol: int
    kind: str
    config: str


def about(**fields: Unpack[Fields]) -> dict[str, Any]:
    """The `extra` of a logging call; a session also tells the request it is for."""
    if "session" in fields:
        fields.setdefault("request", request_of(fields["session"]))
    return {ATTRIBUTE: fields}
