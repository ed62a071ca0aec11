"""The agent's log: its set-up, and formatters that make one line of each record, whatever it contains."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from flowedge.agent.agent_config import LogSettings
from flowedge.core.log_fields import ATTRIBUTE, cut
from flowedge.core.plain_text import visible, visible_field
from flowedge.network.log_rate import LibraryLimit

MAX_MESSAGE = 4096  # characters
MAX_EXCEPTION = 1 << 14  # characters, traceback included

_log = logging.getLogger(__name__)
# Of syslog, as sd-daemon(3) has them.
_PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


def set_up_logs(settings: LogSettings, device: str) -> None:
    """Have all log records of this process written to stderr, one line each; of libraries a few a minute."""
    prioritised = goes_to_journal(sys.stderr.fileno())
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonFormatter(device, prioritised=prioritised))
    else:
        handler.setFormatter(TextFormatter(prioritised=prioritised))
    handler.addFilter(LibraryLimit())
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
        _log.error("thread %s ended with an unexpected error", name, exc_info=ended.exc_value)


class JsonFormatter(logging.Formatter):
    """Makes a JSON object: ts (UTC), level, logger, device and message, then the record's fields."""

    def __init__(self, device: str, *, prioritised: bool = False) -> None:
        """prioritised: whether lines begin with a priority, which journald reads and removes."""
        super().__init__()
        self._device = device
        self._prioritised = prioritised

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "device": self._device,
            "message": cut(record.getMessage(), MAX_MESSAGE),
            **_fields(record),
        }
        line = visible(json.dumps(content, ensure_ascii=False, default=str))
        return _priority(record) + line if self._prioritised else line


class TextFormatter(logging.Formatter):
    """Makes a text: time, level, logger and message, then name=value of each field."""

    def __init__(self, *, prioritised: bool = False) -> None:
        """prioritised: whether lines are for journald, which adds the time and reads a priority."""
        super().__init__()
        self._prioritised = prioritised

    def format(self, record: logging.LogRecord) -> str:
        words = [f"{record.name}:", visible_field(record.getMessage(), MAX_MESSAGE)]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items() if name != "event"]
        line = " ".join(words)
        if self._prioritised:
            return _priority(record) + line
        return f"{_timestamp(record)} {record.levelname.lower()} {line}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, ATTRIBUTE, {}))
    if record.exc_info:
        fields["exception"] = cut(logging.Formatter().formatException(record.exc_info), MAX_EXCEPTION)
    return fields


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _priority(record: logging.LogRecord) -> str:
    for level, priority in _PRIORITIES.items():
        if record.levelno >= level:
            return f"<{priority}>"
    return "<7>"


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    plain = text and text.isprintable() and not any(character in ' "=' for character in text)
    return text if plain else f'"{visible(text.replace(chr(34), chr(39)))}"'
