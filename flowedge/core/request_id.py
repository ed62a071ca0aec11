"""The id that a request has on every device; sessions are named after it, and so links carry it."""

from __future__ import annotations

import re
import secrets
import uuid

from flowedge.core.errors import BadRequestError

MAX_LENGTH = 48
_PATTERN = re.compile(rf"[A-Za-z0-9_:-]{{1,{MAX_LENGTH}}}")
_SEPARATOR = "."


def new_request_id() -> str:
    """One that nobody has."""
    return uuid.uuid4().hex


def check_request_id(text: str) -> str:
    """The id as it was given; BadRequestError for one that could not stand in a log or a session's name."""
    if not _PATTERN.fullmatch(text):
        raise BadRequestError(
            f"the request id is {text[:80]!r}; it must be 1 to {MAX_LENGTH} characters of A-Z a-z 0-9 _ : -"
        )
    return text


def session_of(request_id: str) -> str:
    """A new session for a request. A client may give one id twice, but two sessions never share a name."""
    return f"{request_id}{_SEPARATOR}{secrets.token_hex(4)}"


def request_of(session: str) -> str:
    """The request that a session is for; the session's own name where it is for none."""
    return session.partition(_SEPARATOR)[0]
