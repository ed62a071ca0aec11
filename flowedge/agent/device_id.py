"""The id of a device. It is the same at every start, and one agent at a time holds it."""

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
    """An id, and the lock by which no other agent of this machine takes it.

    Attributes:
        lock: a file descriptor; None for an id that is used until this agent ends.
    """

    value: str
    lock: int | None

    @classmethod
    def claim(cls, directory: Callable[[], Path] = state_dir) -> DeviceId:
        """Return the id that a directory holds, which is written if there is none.

        If another agent of this machine holds it, or the directory cannot be used, the id is new and used for
        this start only. The log says so.
        """
        lock: int | None = None
        try:
            path = directory()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(_stored_id(path / ID_FILE), lock)
        except BlockingIOError:
            fields = about(event="device_id_taken", reason="another agent of this machine holds it")
            _log.info(
                "another agent holds the id in %s: this agent has a new id, until it ends", path, extra=fields
            )
        except (OSError, DeviceError) as error:
            _log.warning(
                "the id cannot be stored (%s): this agent has a new id at every start; "
                "set FLOWEDGE_STATE_DIR to a directory for it",
                error,
                extra=about(event="device_id_not_kept", reason=str(error)),
            )
        if lock is not None:
            os.close(lock)
        return cls(_new_id(), None)

    def release(self) -> None:
        lock, self.lock = self.lock, None
        if lock is not None:
            os.close(lock)


def _stored_id(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if _ID.fullmatch(text):
            return text
        fields = about(event="device_id_replaced", reason=f"{path} held none")
        _log.warning("%s holds no id: a new one is written", path, extra=fields)
    new = _new_id()
    private_files.write(path, f"{new}\n".encode())
    return new


def _new_id() -> str:
    return uuid.uuid4().hex[:16]
