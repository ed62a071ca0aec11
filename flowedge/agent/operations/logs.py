"""The set-up of the agent's log."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping

from flowedge.agent.config.agent_config import LogSettings
from flowedge.agent.operations.log_format import JsonFormatter, TextFormatter

_log = logging.getLogger(__name__)


def set_up_logs(settings: LogSettings, device: str) -> None:
    """Have all log records of this process written to stderr, one line each."""
    prioritised = goes_to_journal(sys.stderr.fileno())
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonFormatter(device, prioritised=prioritised))
    else:
        handler.setFormatter(TextFormatter(prioritised=prioritised))
    level = logging.getLevelName(settings.level.upper())
    # Libraries log far too much at the debug level.
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("flowedge").setLevel(level)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def goes_to_journal(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the output to a file descriptor goes to journald, by systemd's JOURNAL_STREAM."""
    found = os.fstat(descriptor)
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "?" if ended.thread is None else ended.thread.name
        _log.error("thread %s ended with an error nobody foresaw", name, exc_info=ended.exc_value)
