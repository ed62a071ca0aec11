"""Text that can be sent: a str of Python may hold halves of characters, which UTF-8 cannot encode."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError


def checked_utf8(text: str, name: str) -> str:
    """Return a text as it is; `name` says in an error what the text is.

    Raises:
        BadRequestError: when UTF-8 cannot encode the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"{name} is not valid UTF-8: its character {error.start + 1} is U+{ord(text[error.start]):04X}, "
            "which stands for a byte that could not be read; convert the text to UTF-8"
        ) from error
    return text
