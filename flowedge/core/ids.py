"""Ids of requests, the same on all devices, and of pipelines, which are secrets; names of stages."""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid

from flowedge.core.errors import BadRequestError

MAX_LENGTH = 48
_PIPELINE_BYTES = 24
_LABEL_DIGITS = 12
_PATTERN = re.compile(rf"[A-Za-z0-9_:-]{{1,{MAX_LENGTH}}}")
_SEPARATOR = "."


def new_request_id() -> str:
    """Return an id that no other request has."""
    return uuid.uuid4().hex


def check_request_id(text: str) -> str:
    """Return the id unchanged.

    Raises:
        BadRequestError: when it has characters or a length that logs and session names do not allow.
    """
    if not _PATTERN.fullmatch(text):
        raise BadRequestError(
            f"the request id is {text[:80]!r}; it must be 1 to {MAX_LENGTH} characters of A-Z a-z 0-9 _ : -"
        )
    return text


def session_of(request_id: str) -> str:
    """Return the name of a new session for a request; the name is unique even if a client repeats an id."""
    return f"{request_id}{_SEPARATOR}{secrets.token_hex(4)}"


def request_of(session: str) -> str:
    """Return the request id that a session's name begins with, or the whole name where it has no id."""
    return session.partition(_SEPARATOR)[0]


def new_pipeline_id() -> str:
    """Return an id that nobody can guess: 192 random bits, in hexadecimal digits."""
    return secrets.token_hex(_PIPELINE_BYTES)


def pipeline_label(pipeline: str) -> str:
    """Return the first digits of the SHA-256 of a pipeline's id; "" for the id "".

    Labels tell pipelines apart. A stream cannot be opened with one.
    """
    return hashlib.sha256(pipeline.encode()).hexdigest()[:_LABEL_DIGITS] if pipeline else ""


def stage_name(draft_node: str) -> str:
    """Return the name of the stage that a draft node is as well, given by its own name."""
    return f"{draft_node}+"
