"""What is left of a load that failed."""

from __future__ import annotations

import traceback


def release_frames(error: BaseException) -> None:
    """Frees what the frames of an error and of its causes hold; those that still run keep theirs.

    An error and its frames hold each other, and weights must not wait for the collection of such cycles.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
