"""Paths that begin with ~."""

from __future__ import annotations

from pathlib import Path

from flowedge.core.errors import BadRequestError


def expand_home(text: str) -> Path:
    """Return a path in which ~ or ~USER is replaced by the home directory.

    Raises:
        BadRequestError: when there is no such user, or the user has no home directory.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = text.partition("/")[0]
        raise BadRequestError(
            f"{text}: the home directory of {user} is not known; write the path in full"
        ) from error
