"""The events that the services of a host wrote to journald."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import ProtocolError

UNITS = ("flowedge-agent.service", "flowedge-draft-node.service")  # enrolment writes text
COMMAND = ("journalctl", "--no-pager", "--output=json", *(f"_SYSTEMD_UNIT={unit}" for unit in UNITS))
_ERRORS = frozenset({"error", "critical"})


@dataclass(frozen=True)
class JournalEntry:
    """An event that a service logged, with all its fields."""

    host: str
    fields: dict[str, Any]

    @property
    def event(self) -> str:
        return str(self.fields.get("event", ""))

    @property
    def request(self) -> str:
        return str(self.fields.get("request", ""))

    @property
    def is_error(self) -> bool:
        return self.fields["level"] in _ERRORS or "exception" in self.fields


def parse(host: str, output: str) -> list[JournalEntry]:
    """Return the events of a host from the output of COMMAND.

    Raises:
        ProtocolError: when a line is not an event.
    """
    return [_entry(host, json.loads(line)) for line in output.splitlines() if line]


def _entry(host: str, written: dict[str, Any]) -> JournalEntry:
    text = written["MESSAGE"]
    try:
        fields = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{host} logged a line that is no JSON: {text!r}") from error
    if not isinstance(fields, dict) or not {"ts", "level", "message"} <= fields.keys():
        raise ProtocolError(f"{host} logged a line that is no event: {text!r}")
    return JournalEntry(host, fields)


def requests(entries: Iterable[JournalEntry]) -> set[str]:
    """Return the ids of all requests that the events name."""
    return {entry.request for entry in entries} - {""}


def answered(entries: Iterable[JournalEntry]) -> list[str]:
    """Return the ids of the requests that the draft node answered to the end, in order."""
    return [e.request for e in entries if e.event == "session_closed" and e.fields.get("reason") in _ENDS]


_ENDS = frozenset({"length", "stop", "eos"})


def errors(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Return the events that report an error."""
    return [entry for entry in entries if entry.is_error]
