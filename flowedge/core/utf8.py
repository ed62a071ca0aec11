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
        code = ord(text[error.start])
        # Python holds bytes of the command line and of file names that are not UTF-8 as these.
        shown = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise BadRequestError(
            f"{name} is not valid UTF-8: its character {error.start + 1} is {shown}; convert it to UTF-8"
        ) from error
    return text
