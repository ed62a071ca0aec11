"""The latency of a network is measured by handshakes alone."""

from __future__ import annotations

import socket

import pytest

from flowedge.core.errors import DeviceLostError
from flowedge.planning.measuring.link_sender import handshake_times


def test_handshakes_need_nobody_who_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listening:
        times = handshake_times(f"127.0.0.1:{listening.getsockname()[1]}", 4, 5.0)
    assert len(times) == 4
    assert all(0 < seconds < 5 for seconds in times)


def test_a_device_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(DeviceLostError, match=f"{address}.*no connection"):
        handshake_times(address, 1, 5.0)
