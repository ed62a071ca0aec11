"""Files that only their owner may read, written completely or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from flowedge.core.errors import AccessError


def make_directory(directory: Path) -> None:
    """Make a directory of mode 0700, and its parents.

    Raises:
        FileExistsError: when it exists.
    """
    if not directory.parent.is_dir():
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    if os.geteuid() == 0:  # root joins for a service that runs as another user
        owner = directory.parent.stat()
        os.chown(directory, owner.st_uid, owner.st_gid)


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step; it has mode 0600 from the beginning and is on disk on return."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> bytes:
    """Return the content of a file that holds a private key.

    Raises:
        AccessError: when the file cannot be read, or users other than its owner can read it.
    """
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AccessError(f"{path} holds a private key and can be read by others; run chmod 600 {path}")
    return content
