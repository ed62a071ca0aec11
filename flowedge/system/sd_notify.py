"""Telling systemd how the service is, by the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"
READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

_log = logging.getLogger(__name__)


class Notifier:
    """Sends states to the service manager; does nothing where there is none.

    `watchdog_s` is within what time the service manager wants a sign of life, None where it wants none.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """The environment is that of a service: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID."""
        name = environment.get(SOCKET_VARIABLE, "")
        # "@" stands for the NUL that an abstract name begins with.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment) if name else None
        self._told: str | None = None

    def tell(self, *states: str) -> None:
        """Send states, such as READY, in one datagram. A service manager that is not there is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            _log.warning("the service manager was not told %s: %s", ", ".join(states), error)

    def status(self, text: str) -> None:
        """Have `systemctl status` show a line; nothing is sent when it shows that already."""
        if text != self._told:
            self._told = text
            self.tell(f"STATUS={text}")


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    wanted = environment.get(WATCHDOG_VARIABLE, "")
    meant = environment.get(WATCHDOG_PID_VARIABLE, "")
    if not wanted or (meant and meant != str(os.getpid())):
        return None
    if not wanted.isdecimal() or not int(wanted):
        _log.warning("%s is %r, which is no time; no watchdog is served", WATCHDOG_VARIABLE, wanted)
        return None
    return int(wanted) / 1e6
