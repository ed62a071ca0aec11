"""The round trips of a network: TCP handshakes, which the systems of both devices answer by themselves."""

from __future__ import annotations

import socket
import time
from typing import Any

from flowedge.core.errors import DeviceLostError
from flowedge.network.address import split_address


def handshake_times(address: str, count: int, seconds: float) -> list[float]:
    """Return the seconds of `count` TCP handshakes with a device; waits for each of them.

    No software of the device takes part, other than what listens at the address.

    Args:
        seconds: how long a handshake may take.

    Raises:
        DeviceLostError: when a connection is not made.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)[0]
        return [_handshake(socket.socket(family, kind), place, seconds) for _ in range(count)]
    except OSError as error:
        raise DeviceLostError(address, f"no connection: {error}") from error


def _handshake(connecting: socket.socket, place: tuple[Any, ...], seconds: float) -> float:
    with connecting:
        connecting.settimeout(seconds)
        started = time.perf_counter()
        connecting.connect(place)
        return time.perf_counter() - started
