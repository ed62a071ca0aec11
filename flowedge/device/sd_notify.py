"""Reports the state of the service to systemd, by the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from flowedge.core.plain_text import visible

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"
READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

_log = logging.getLogger(__name__)


class Notifier:
    """Sends states to the service manager; does nothing where there is no service manager.

    Attributes:
        watchdog_s: seconds within which the service manager expects a sign of life; None without a watchdog.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """environment: may hold NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as systemd sets them."""
        name = environment.get(SOCKET_VARIABLE, "")
        # "@" stands for the NUL at the beginning of an abstract socket name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment) if name else None
        self._shown: str | None = None

    def notify(self, *states: str) -> None:
        """Send states, such as READY, in one datagram; a failure is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            _log.warning("the service manager was not sent %s: %s", ", ".join(states), error)

    def status(self, text: str) -> None:
        """Have `systemctl status` show a line; nothing is sent when it shows that line already."""
        if text != self._shown:
            self._shown = text
            self.notify(f"STATUS={visible(text)}")


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    wanted = environment.get(WATCHDOG_VARIABLE, "")
    meant = environment.get(WATCHDOG_PID_VARIABLE, "")
    if not wanted or (meant and meant != str(os.getpid())):
        return None
    if not wanted.isdecimal() or not int(wanted):
        _log.warning(
            "%s is %r, which is not a number of microseconds; no watchdog is served",
            WATCHDOG_VARIABLE,
            wanted,
        )
        return None
    return int(wanted) / 1e6
