"""Log records as lines: one an event, whatever is in it."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any

from flowedge.core.log_fields import ATTRIBUTE

# Of syslog, as sd-daemon(3) has them.
_PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class JsonFormatter(logging.Formatter):
    """A JSON object a line: ts (UTC), level, logger, device and message first, then the fields there are."""

    def __init__(self, device: str, *, prioritised: bool = False) -> None:
        """`prioritised`: lines begin with the priority that journald takes off again."""
        super().__init__()
        self._device = device
        self._prioritised = prioritised

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        content = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "device": self._device,
            "message": record.getMessage(),
            **_fields(record),
        }
        line = json.dumps(content, ensure_ascii=False, default=str)
        return _priority(record) + line if self._prioritised else line


class TextFormatter(logging.Formatter):
    """The time, level, logger and message, then name=value of each field."""

    def __init__(self, *, prioritised: bool = False) -> None:
        """`prioritised`: for journald, which has the time, and takes the level from a prefix."""
        super().__init__()
        self._prioritised = prioritised

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        words = [f"{record.name}:", _one_line(record.getMessage())]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items() if name != "event"]
        line = " ".join(words)
        if self._prioritised:
            return _priority(record) + line
        return f"{_timestamp(record)} {record.levelname.lower()} {line}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, ATTRIBUTE, {}))
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
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
    return text if plain else f'"{_one_line(text.replace(chr(34), chr(39)))}"'


def _one_line(text: str) -> str:
    """What could break the line or steer a terminal, as JSON writes it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
