"""SHA-256 digests, which name the objects of the weight cache."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable

from flowedge.core.errors import ProtocolError

DIGEST_BYTES = 32
READ_BYTES = 4 << 20  # per read while hashing

HEX_PATTERN = "[0-9a-f]{64}"
_HEX = re.compile(HEX_PATTERN)


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hex, and therefore safe as a file name."""
    return _HEX.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Return the text; raise ProtocolError unless it is a SHA-256 in lower-case hex."""
    if not is_digest(text):
        raise ProtocolError(f"{text[:80]!r} is not a SHA-256 in lower-case hex")
    return text


def digest_of(data: bytes) -> str:
    """The SHA-256 of bytes, in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def hash_range(
    descriptor: int, offset: int, size: int, on_bytes: Callable[[int], None] | None = None
) -> hashlib._Hash:
    """Hash `size` bytes of an open file from `offset`, or fewer if the file ends earlier.

    on_bytes: called after each read with the number of bytes that it hashed.
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
