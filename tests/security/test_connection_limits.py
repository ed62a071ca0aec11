"""Which connections are ended."""

from __future__ import annotations

from flowedge.net.tcp_connections import TcpConnection
from flowedge.security.tls.connection_limits import ConnectionBounds, surplus

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
