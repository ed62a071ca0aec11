"""What the zeroconf library logs, without tracebacks."""

from __future__ import annotations

import logging


class _OneLine(logging.Filter):
    """Puts the reason of an error into its line: an interface that goes away is no bug of this program."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}", None
            record.exc_info = record.exc_text = None
        return True


_ONE_LINE = _OneLine()


def shorten_log() -> None:
    """Have each error of zeroconf logged in one line from now on."""
    logging.getLogger("zeroconf").addFilter(_ONE_LINE)
