"""Ids of pipelines, which are secrets, and the labels that stand for them in descriptions and logs."""

from __future__ import annotations

import hashlib
import secrets

_ID_BYTES = 24
_LABEL_DIGITS = 12


def new_pipeline_id() -> str:
    """Return an id that nobody can guess: 192 random bits, in hexadecimal digits."""
    return secrets.token_hex(_ID_BYTES)


def pipeline_label(pipeline: str) -> str:
    """Return the first digits of the SHA-256 of a pipeline's id; "" for the id "".

    Labels tell pipelines apart. A stream cannot be opened with one.
    """
    return hashlib.sha256(pipeline.encode()).hexdigest()[:_LABEL_DIGITS] if pipeline else ""
