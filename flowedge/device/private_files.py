"""Files that only their owner may read, written completely or not at all.

Root writes to its own directories only: a directory of another user may be replaced by a link at any time.
Commands take the rights of a directory's owner first, see `flowedge.device.owner`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import stat
from pathlib import Path

from flowedge.core.errors import AccessError
from flowedge.device.owner import check_owner

_log = logging.getLogger(__name__)


def make_directory(directory: Path) -> None:
    """Make a directory of mode 0700, and its parents.

    Raises:
        FileExistsError: when it exists.
        AccessError: when this process is root's, and the directory would be another user's.
    """
    check_owner(directory)
    if not directory.parent.is_dir():
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)


def close_directory(directory: Path) -> None:
    """Give a directory mode 0700 if other users may enter it, and log that; files in it may be secret.

    A directory of another user is left as it is.
    """
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    others = mode & (stat.S_IRWXG | stat.S_IRWXO)
    if others and found.st_uid == os.geteuid():
        directory.chmod(mode & ~others)
        _log.warning("%s was open to other users (mode %o); its mode is 700 now", directory, mode)


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step; it has mode 0600 from the beginning and is on disk on return.

    Raises:
        AccessError: when this process is root's, and the directory is another user's.
    """
    check_owner(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def remove_directory(directory: Path) -> None:
    """Remove a directory and all in it; nothing happens where there is none.

    Raises:
        AccessError: when this process is root's, and the directory is another user's.
    """
    check_owner(directory)
    shutil.rmtree(directory, ignore_errors=True)


def read_private(path: Path) -> bytes:
    """Return the content of a file that holds a private key.

    Raises:
        AccessError: when the file cannot be read, or users other than its owner can read it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AccessError(f"{path} holds a private key and can be read by others; run chmod 600 {path}")
    return content
