"""An agent that was started by a command must not outlive it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_GRACE_S = 5.0


def stop_when_input_closes() -> None:
    """Watches standard input, a pipe whose other end the parent holds: it closes however the parent ends."""
    threading.Thread(target=_watch, name="flowedge-orphan", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)  # the orderly way out hangs
