"""The log lines of a stage about its sessions, which follow the messages that it sends on."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flowedge.core.log_fields import about
from flowedge.core.messages import Close, Fault, Message, Open

_log = logging.getLogger(__name__)


class SessionLog:
    """The log of one stage of one pipeline."""

    def __init__(self, device: str, pipeline: str) -> None:
        self._device = device
        self._pipeline = pipeline

    def sending(self, message: Message) -> None:
        """Log a message that is handed to the in-band link, if it begins or ends a session."""
        match message:
            case Open():
                self._opened(message)
            case Close():
                self._closed(message)
            case Fault() if message.device == self._device:
                fields = about(
                    event="session_failed",
                    pipeline=self._pipeline,
                    session=message.session,
                    code=message.code,
                    reason=message.reason,
                )
                _log.warning("a session has failed", extra=fields)

    def dropped(self, sessions: Iterable[str], reason: str) -> None:
        """Log the end of sessions that were open when the pipeline ended."""
        for session in sessions:
            fields = about(event="session_closed", pipeline=self._pipeline, session=session, reason=reason)
            _log.warning("a session has ended", extra=fields)

    def _opened(self, message: Open) -> None:
        fields = about(
            event="session_opened",
            pipeline=self._pipeline,
            session=message.session,
            cache_rows=message.capacity,
        )
        _log.info("a session was opened", extra=fields)

    def _closed(self, message: Close) -> None:
        own = message.reports[-1]
        fields = about(
            event="session_closed",
            pipeline=self._pipeline,
            session=message.session,
            reason="the draft node closed it",
            segments=own.segments,
            rows_computed=own.rows_computed,
            rows_trimmed=own.rows_trimmed,
            bytes=own.bytes_sent,
            busy_s=own.busy_s,
        )
        _log.info("a session has ended", extra=fields)
