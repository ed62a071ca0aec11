"""Checked numbers and texts of frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.protocol.frame_bounds import MAX_SESSION_ID, MAX_TEXT
from flowedge.protocol.frame_error import FrameError

MAX_INDEX = 1 << 40  # rows, positions, epochs, counts


def is_session_id(name: str) -> bool:
    """Return whether a text may be the id of a session."""
    return 0 < len(name) <= MAX_SESSION_ID and name.isascii() and name.isprintable()


def session_of(body: Any) -> str:
    """Return the session that a part of a frame names. Raises FrameError if it names none."""
    session: str = getattr(body, "session", "")
    if not is_session_id(session):
        raise FrameError("", f"the session id must be 1 to {MAX_SESSION_ID} printable ASCII characters")
    return session


def int64(values: Sequence[int], least: int) -> IntArray:
    """Return the numbers: int64 [n].

    Raises:
        ProtocolError: when one is below `least` or above MAX_INDEX.
    """
    numbers = list(values)  # of a few numbers, Python finds the least sooner than numpy
    if numbers and (min(numbers) < least or max(numbers) > MAX_INDEX):
        raise ProtocolError(f"an index is outside {least}..{MAX_INDEX}")
    array: IntArray = np.array(numbers, dtype=np.int64)
    return array


def index(value: int) -> int:
    """Return a number of at most MAX_INDEX. Raises ProtocolError for a larger one."""
    if value > MAX_INDEX:
        raise ProtocolError(f"the number {value} is above {MAX_INDEX}")
    return value


def text(value: str) -> str:
    """Return a text of at most MAX_TEXT characters. Raises ProtocolError for a longer one."""
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text has {len(value)} characters; at most {MAX_TEXT} are allowed")
    return value
