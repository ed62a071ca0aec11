"""The states of lost devices are told apart."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from flowedge.core.errors import DeviceLostError, DrainingError
from flowedge.network.device_state import (
    FLAPS,
    ConnectResult,
    DeviceState,
    Probe,
    loss_of,
    state_of,
    without_network,
)
from flowedge.network.ports import try_connect

CLOSED = DeviceLostError("v1", "it closed the connection")
STOPPED = DrainingError("v1", "it is being stopped")
TOLD = DeviceLostError("v1", "no sign of life for 3 s")
TOLD.by_neighbour = True
STILL = DeviceLostError("d0", "its pipeline stands still")
STILL.stands_still = True
BEFORE = "the instance before the loss"
THERE, ANOTHER = Probe(ConnectResult.OPEN, BEFORE), Probe(ConnectResult.OPEN, "another")
OPEN, REFUSED, SILENT, NO_ROUTE = map(Probe, ConnectResult)


@pytest.mark.parametrize(
    ("lost", "probe", "losses", "state"),
    [
        (CLOSED, None, 1, "lost"),
        (CLOSED, REFUSED, 1, "ended"),
        (CLOSED, SILENT, 1, "unreachable"),
        (CLOSED, NO_ROUTE, 1, "unreachable"),
        (CLOSED, OPEN, 1, "frozen"),
        (CLOSED, ANOTHER, 1, "restarted"),
        (CLOSED, THERE, 1, "back"),
        (STOPPED, None, 1, "stopping"),
        (STOPPED, REFUSED, 1, "stopping"),
        (STOPPED, ANOTHER, FLAPS, "stopping"),
        (TOLD, None, 1, "lost"),
        (TOLD, THERE, 1, "half-connected"),
        (TOLD, ANOTHER, 1, "restarted"),
        (TOLD, REFUSED, 1, "ended"),
        (STILL, None, 1, "slow"),
        (STILL, THERE, 1, "slow"),
        (CLOSED, THERE, FLAPS - 1, "back"),
        (CLOSED, THERE, FLAPS, "flapping"),
        (TOLD, ANOTHER, FLAPS, "flapping"),
        (CLOSED, SILENT, FLAPS, "unreachable"),
        (None, None, 1, "lost"),
        (None, SILENT, 1, "unreachable"),
        (None, THERE, 1, "back"),
    ],
)
def test_states(lost: DeviceLostError | None, probe: Probe | None, losses: int, state: str) -> None:
    assert state_of(lost, probe, BEFORE, losses) == state


def test_an_agent_of_an_unknown_instance_has_not_started_again() -> None:
    assert state_of(CLOSED, ANOTHER) is DeviceState.BACK


def test_a_device_whose_own_network_is_off_says_so() -> None:
    loss = without_network("d0", [SILENT, NO_ROUTE])
    assert loss is not None
    assert str(loss).startswith("device d0: it reaches none of its devices")
    assert without_network("d0", [SILENT]) is None, "a single device is the likelier one to be off"
    assert without_network("d0", [SILENT, REFUSED]) is None
    assert without_network("d0", [SILENT, THERE]) is None
    assert without_network("d0", []) is None


@pytest.mark.parametrize("state", DeviceState)
def test_a_state_says_what_it_means(state: DeviceState) -> None:
    said = str(loss_of("v1", state, "no sign of life for 3 s"))
    assert said.startswith("device v1: ")
    assert ("no sign of life" in said) == (state not in ("ended", "unreachable", "frozen"))
    assert loss_of("v1", state, "").reason, "a device that is missed as well has a reason"


def test_connections_to_a_listener_to_nobody_and_to_a_name_of_several_addresses() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert asyncio.run(try_connect(f"127.0.0.1:{port}", 5.0)) is ConnectResult.OPEN
    assert asyncio.run(try_connect(f"127.0.0.1:{port}", 5.0)) is ConnectResult.REFUSED
    assert asyncio.run(try_connect(f"localhost:{port}", 5.0)) is ConnectResult.REFUSED
