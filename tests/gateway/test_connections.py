"""Who gets a connection where somebody has taken all: shares by address, and the reserve for /health."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flowedge.gateway.connections import RESERVED, ConnectionTable
from tests.gateway.http_sockets import SOCKET_S, RawAnswer, head, parsed, read_all
from tests.support.gateways import GatewayProcess, gateway_before

FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
MOST, EACH = 6, 4
UNFINISHED = head("POST", "/v1/chat/completions", "Content-Length: 100")
MODELS = head("GET", "/v1/models", "Connection: close")
HEALTH = head("GET", "/health/live")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    file = tmp_path_factory.mktemp("pipelines") / "pipelines.toml"
    file.write_text('[[pipelines]]\nname = "gone"\ndraft_node = "127.0.0.1:9"\n')
    limits = {"connections": MOST, "connections_each": EACH}
    settings = {"limits": limits, "deadlines": {"body_s": 120, "headers_s": 120}}
    with gateway_before(options=["--pipelines", str(file)], settings=settings) as started:
        yield started


def connect(gateway: GatewayProcess, address: str, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(gateway.host, SOCKET_S, source_address=(address, 0))
    connection.sendall(sent)
    return connection


def asked(gateway: GatewayProcess, address: str, request: bytes) -> RawAnswer:
    with connect(gateway, address, request) as connection:
        return parsed(read_all(connection))


def test_silent_connections_make_way_for_their_own_and_for_others(gateway: GatewayProcess) -> None:
    with ExitStack() as held:
        silent = [held.enter_context(connect(gateway, FIRST)) for _ in range(3 * MOST)]
        assert asked(gateway, FIRST, MODELS).status == 200
        assert asked(gateway, SECOND, MODELS).status == 200
        assert read_all(silent[0]) == b"", "the oldest were closed"
        others = [held.enter_context(connect(gateway, THIRD)) for _ in range(EACH)]
        assert asked(gateway, SECOND, MODELS).status == 200
        others[-1].sendall(MODELS)
        assert parsed(read_all(others[-1])).status == 200, "the last came when all were taken"


def test_unfinished_requests_take_the_share_of_their_address_and_never_health(
    gateway: GatewayProcess,
) -> None:
    with ExitStack() as held:
        for address, number in ((FIRST, EACH), (SECOND, MOST - EACH)):
            for _ in range(number):
                # Read together: the head of the second request is there when the first is answered.
                begun = held.enter_context(connect(gateway, address, HEALTH + UNFINISHED))
                assert begun.recv(4096).startswith(b"HTTP/1.1 200")
            for other in (FIRST, THIRD) if number < EACH else (FIRST,):
                refused = asked(gateway, other, MODELS)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                error = json.loads(refused.rest)["error"]
                assert (error["type"], error["code"]) == ("server_error", "busy")
        silent = [held.enter_context(connect(gateway, FIRST)) for _ in range(RESERVED + 2)]
        assert parsed(read_all(silent[0])).status == 503, "the reserve goes to who asks"
        for address in (FIRST, THIRD):
            assert asked(gateway, address, HEALTH).status == 200
    assert asked(gateway, FIRST, MODELS).status == 200


class Entered:
    """A connection of the table; closed when it was told to make room."""

    closed = False

    def give_way(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("2001:db8::1", "2001:db8::ffff:2", id="one network of IPv6"),
        pytest.param("192.0.2.7", "::ffff:192.0.2.7", id="IPv4 in IPv6"),
        pytest.param("fe80::1%eth0", "fe80::2%eth1", id="with a zone"),
    ],
)
def test_addresses_that_count_as_one(one: str, other: str) -> None:
    table, connections = ConnectionTable(100, 2), [Entered() for _ in range(3)]
    assert all(table.enter(*each) for each in zip(connections, (one, other, one), strict=True))
    assert [each.closed for each in connections] == [True, False, False]
    assert table.enter(away := Entered(), "2001:db8:0:1::1") and not away.closed


def test_a_trusted_proxy_has_no_share() -> None:
    table, connections = ConnectionTable(4, 2, ["10.0.0.0/8"]), [Entered() for _ in range(5)]
    assert all(table.enter(each, "10.1.2.3") for each in connections)
    assert [each.closed for each in connections] == [True, False, False, False, False]


def test_the_table_is_empty_when_all_are_closed() -> None:
    table, connections = ConnectionTable(3, 2), [Entered() for _ in range(100)]
    for number, each in enumerate(connections):
        table.enter(each, f"192.0.2.{number % 5}")
        if number % 3:
            table.works(each)
    for each in connections:
        table.leave(each)
    assert not any(vars(table)[name] for name in ("_group_of", "_number", "_waiting", "_reserved"))
