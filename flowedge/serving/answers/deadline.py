"""The time that the answers of a request may take."""

from __future__ import annotations

import time

from flowedge.serving.errors import ApiError


class AnswerDeadline:
    """The time of one request, which runs from when the object is made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when there are none."""
        return max(0.0, self._until - time.monotonic())

    def error(self) -> ApiError:
        """Return what a request is answered with whose time is over."""
        limit = f"{self._seconds:g} s, the limit given by deadlines.answer_s"
        return ApiError(504, f"the answer was not complete after {limit}", kind="timeout", code="timeout")
