"""SHA-256 of contents, which are what the cache calls things by."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable

from flowedge.core.errors import ProtocolError

DIGEST_BYTES = 32
READ_BYTES = 4 << 20  # that are hashed at a time

_HEX = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hex, and so safe as the name of a file."""
    return _HEX.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """The text itself; ProtocolError when it is no SHA-256 in lower-case hex."""
    if not is_digest(text):
        raise ProtocolError(f"{text[:80]!r} is no SHA-256 in hex")
    return text


def digest_of(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_range(
    descriptor: int, offset: int, size: int, on_bytes: Callable[[int], None] | None = None
) -> hashlib._Hash:
    """The hash of `size` bytes of an open file from `offset`, or of fewer where it ends before.

    on_bytes: told how many were hashed, each time.
    """
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(READ_BYTES, max(1, size))))
    end = offset + size
    while offset < end:
        count = os.preadv(descriptor, [buffer[: end - offset]], offset)
        if count == 0:
            break
        digest.update(buffer[:count])
        offset += count
        if on_bytes is not None:
            on_bytes(count)
    return digest
