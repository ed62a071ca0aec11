"""Ends an agent together with the command that started it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Annotated

import typer

ExitWithParent = Annotated[
    bool, typer.Option("--exit-with-parent", help="Stop when standard input closes.", hidden=True)
]
_GRACE_S = 5.0


def stop_when_input_closes() -> None:
    """Stop this process when standard input, a pipe from the parent, closes, however the parent ends."""
    threading.Thread(target=_watch, name="flowedge-orphan", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)  # the orderly shutdown hangs
