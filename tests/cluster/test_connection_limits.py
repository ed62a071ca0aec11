"""Which connections are ended."""

from __future__ import annotations

import asyncio

import pytest

from flowedge.cluster.tls.connection_limits import ConnectionBounds, ConnectionLimits, surplus
from flowedge.network.tcp_connections import TcpConnection

BOUNDS = ConnectionBounds(unproven=2, per_member=3)


def connections(host: str, number: int) -> list[TcpConnection]:
    return [TcpConnection((host, port), -1) for port in range(number)]


def test_the_oldest_connections_that_prove_nothing_are_ended() -> None:
    mine, others = connections("10.0.0.1", 5), connections("10.0.0.2", 2)
    assert set(surplus([*mine, *others], {}, BOUNDS)) == set(mine[:3])


def test_the_newest_connections_of_a_member_are_ended_whatever_their_addresses() -> None:
    both = [*connections("10.0.0.1", 3), *connections("10.0.0.2", 2)]
    members = {connection.peer: "thief" for connection in both}
    assert surplus(both, members, BOUNDS) == both[3:]


def test_connections_of_members_do_not_count_as_unproven() -> None:
    mine = connections("10.0.0.1", 5)
    members = {connection.peer: "laptop" for connection in mine[:3]}
    assert surplus(mine, members, BOUNDS) == []


def test_a_call_that_is_admitted_while_connections_are_listed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is admitted once; if that is forgotten, its connection may be ended as an unproven one."""
    limits, (old, new, thief) = ConnectionLimits(BOUNDS), connections("10.0.0.1", 3)
    listed, ended = [old], list[TcpConnection]()

    def list_slowly(_: int) -> list[TcpConnection]:
        found = list(listed)
        if found == [old]:
            limits.prove("ipv4:10.0.0.1:1", "laptop")
            limits.refuse("ipv4:10.0.0.1:2")
        return found

    monkeypatch.setattr("flowedge.cluster.tls.connection_limits.accepted_connections", list_slowly)
    monkeypatch.setattr("flowedge.cluster.tls.connection_limits.shut_down", ended.append)
    asyncio.run(limits.sweep(1))
    assert ended == []
    listed[:] = [new, *connections("10.0.0.1", 9)[3:], thief]  # as many as are ended, and the laptop's
    asyncio.run(limits.sweep(1))
    assert new not in ended
    assert thief in ended
