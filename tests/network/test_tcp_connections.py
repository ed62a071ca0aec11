"""The connections of real sockets of this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.network.tcp_connections import TcpConnection, accepted_connections, peer_of, shut_down


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, socket.socket, socket.socket]]:
    """The port of a server, the calling socket, and the socket that the server has accepted."""
    ip: str = request.param
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.create_server((ip, 0), family=family, dualstack_ipv6=ip == "::") as server:
        port = server.getsockname()[1]
        with socket.create_connection((ip if ip != "::" else "127.0.0.1", port)) as caller:
            accepted, _ = server.accept()
            with accepted:
                yield port, caller, accepted


def test_a_connection_is_found_and_shut_down(ends: tuple[int, socket.socket, socket.socket]) -> None:
    port, caller, accepted = ends
    own = caller.getsockname()
    (found,) = accepted_connections(port)
    assert found == TcpConnection((own[0], own[1]), accepted.fileno())
    shut_down(found)
    caller.settimeout(5)
    assert caller.recv(1) == b""
    assert accepted.recv(1) == b""


def test_a_descriptor_that_has_another_use_is_left_alone(
    ends: tuple[int, socket.socket, socket.socket],
) -> None:
    _, caller, accepted = ends
    shut_down(TcpConnection(("127.0.0.1", 1), accepted.fileno()))
    accepted.sendall(b"1")
    assert caller.recv(1) == b"1"


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("kind", ["pipe", "unix socket", "closed"])
def test_a_descriptor_that_is_no_connection_of_tcp_is_left_alone(kind: str) -> None:
    ends = [end.detach() for end in socket.socketpair()] if kind == "unix socket" else [*os.pipe()]
    before = descriptors()
    shut_down(TcpConnection(("127.0.0.1", 1), ends[0] if kind != "closed" else 1 << 20))
    assert descriptors() == before
    os.write(ends[1], b"1")
    assert os.read(ends[0], 1) == b"1"
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:90", ("127.0.0.1", 90)),
        ("ipv6:%5B::1%5D:90", ("::1", 90)),
        ("ipv6:[::ffff:10.0.0.1]:90", ("10.0.0.1", 90)),
        ("ipv6:%5Bfe80::1%25eth0%5D:90", ("fe80::1", 90)),
        ("unix:/run/x", None),
        ("ipv4:what:90", None),
        ("", None),
    ],
)
def test_grpcs_names_of_peers(name: str, peer: tuple[str, int] | None) -> None:
    assert peer_of(name) == peer
