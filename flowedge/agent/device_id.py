"""The id of a device: the same at every start, and held by one agent at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import DeviceError
from flowedge.core.log_fields import about
from flowedge.system import private_files
from flowedge.system.state_dir import state_dir

ID_FILE = "device-id"
_LOCK_FILE = "device-id.lock"
_ID = re.compile(r"[0-9a-f]{16}")
_log = logging.getLogger(__name__)


@dataclass
class DeviceId:
    """An id, and the lock that keeps other agents of this machine from taking it too.

    Attributes:
        lock: a file descriptor; None when the id is new and of this start alone.
    """

    value: str
    lock: int | None

    @classmethod
    def claim(cls, directory: Callable[[], Path] = state_dir) -> DeviceId:
        """The id kept in a directory, made there if there is none.

        When another agent of this machine holds it, or the directory cannot be used, the log says so and the
        id is a new one.
        """
        lock: int | None = None
        try:
            path = directory()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(_kept(path / ID_FILE), lock)
        except BlockingIOError:
            fields = about(event="device_id_taken", reason="another agent of this machine holds it")
            _log.info(
                "another agent holds the id in %s: this one has a new id, until it ends", path, extra=fields
            )
        except (OSError, DeviceError) as error:
            _log.warning(
                "no id can be kept (%s): this agent has a new one at every start; "
                "FLOWEDGE_STATE_DIR names a directory for it",
                error,
                extra=about(event="device_id_not_kept", reason=str(error)),
            )
        if lock is not None:
            os.close(lock)
        return cls(_new(), None)

    def release(self) -> None:
        """Let another agent have it; harmless when done before."""
        lock, self.lock = self.lock, None
        if lock is not None:
            os.close(lock)


def _kept(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if _ID.fullmatch(text):
            return text
        fields = about(event="device_id_replaced", reason=f"{path} held none")
        _log.warning("%s holds no id: a new one is written", path, extra=fields)
    new = _new()
    private_files.write(path, f"{new}\n".encode())
    return new


def _new() -> str:
    return uuid.uuid4().hex[:16]
