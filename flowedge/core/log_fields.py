"""The fields that a log line may have beside its message; users rely on their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from flowedge.core.ids import request_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_TEXT = 512  # characters of a field
ATTRIBUTE = "flowedge_fields"  # the attribute of a LogRecord that holds the fields


class Fields(TypedDict, total=False):
    """The subject of a log line; seconds, bytes and counts are plain numbers."""

    event: str  # such as "session_opened"; all lines of one event have the same fields
    pipeline: str
    session: str
    request: str
    endpoint: str  # path of a route of the gateway
    method: str  # of HTTP
    status: int  # of HTTP
    key: str  # name of an API key
    role: str
    peer: str  # a device or an address
    lane: str  # kind of link between devices, such as "in_band"
    reason: str
    state: str  # of a lost device, see DeviceState
    number: int  # of the events that the line stands for
    code: str  # of a FlowEdgeError
    model: str
    quant: str
    layers: str  # such as "0-7"
    verification: str  # where tokens are drawn
    strategy: str
    prompt_tokens: int
    new_tokens: int
    cache_rows: int
    segments: int
    rows_computed: int
    rows_trimmed: int
    sessions: int
    seconds: float
    busy_s: float  # time for which the compute thread worked
    first_token_s: float | None  # None where no token was drawn
    bytes: int
    address: str
    version: str
    protocol: int
    kind: str
    config: str
    compute: str  # torch's name of a device, and its processor
    dtype: str


def about(**fields: Unpack[Fields]) -> dict[str, Any]:
    """Return the `extra` of a logging call; the request is derived from the session where one is given."""
    if "session" in fields:
        fields.setdefault("request", request_of(fields["session"]))
    return {ATTRIBUTE: {name: cut(value) for name, value in fields.items()}}


def cut(value: object, most: int = MAX_TEXT) -> object:
    """Return a value of a log line; of a longer text the first `most` characters and its length."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value)} characters)"
    return value
