"""Text that can be sent: a str of Python may hold surrogates, which UTF-8 cannot encode."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError


def checked_utf8(text: str, name: str) -> str:
    """Return a text as it is; `name` says in an error what the text is.

    Python holds bytes of the command line and of file names that are not UTF-8 as surrogates.

    Raises:
        BadRequestError: when UTF-8 cannot encode the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = ord(text[error.start])
        shown = f"byte 0x{wrong - 0xDC00:02x}" if 0xDC80 <= wrong <= 0xDCFF else f"U+{wrong:04X}"
        raise BadRequestError(
            f"{name}: character {error.start + 1} is {shown}, which is not UTF-8; convert the text to UTF-8"
        ) from error
    return text
