"""Whether the addresses of agents can be reached by TCP."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import ERROR, Finding
from flowedge.network.address import split_address
from flowedge.network.device_state import ConnectResult
from flowedge.network.ports import HTTP2_PREFACE

PORT_CLOSED = ERROR(
    "port-closed",
    "nothing listens at an agent's address",
    "Start the agent there, or correct the port: `flowedge agent` says where it listens. Before its device "
    "has joined a cluster (`flowedge join` there) it listens on loopback only.",
)
PORT_FILTERED = ERROR(
    "port-filtered",
    "an agent's address does not answer at all",
    "Open the agent's TCP port in that device's firewall; see that the device is on and on this network.",
)
NO_ROUTE = ERROR(
    "no-route",
    "there is no route to an agent's address",
    "Put both devices on one network, or correct the address in discovery.peers.",
)
NOT_REACHED_BACK = ERROR(
    "not-reached-back",
    "another device cannot reach the agent of this one",
    "Open the agent's TCP port in this device's firewall. Leave out --host and agent.host here, so that the "
    "agent listens on all networks.",
)
NO_ANSWER = ERROR(
    "no-answer",
    "the port is open, but no FlowEdge agent answers as it should",
    "See the agent's log there. If it is in a cluster and this device is not, join it: `flowedge join`. "
    "Otherwise another program may hold the port.",
)
FROZEN = ERROR(
    "agent-frozen",
    "an agent's address takes connections, and then says nothing",
    "Look at that device: the process is stopped (`ps` shows T), hangs, or has no processor time. End it: "
    "systemd starts it again. `dmesg` tells of a failing disk or SD card.",
)
KINDS = (PORT_CLOSED, PORT_FILTERED, NO_ROUTE, NOT_REACHED_BACK, NO_ANSWER, FROZEN)
_TIMESTAMPS = 1  # bit of tcpi_options
_TCP_TIMESTAMP_BYTES = 12


@dataclass(frozen=True)
class PortFacts:
    """An attempt to reach an agent.

    Attributes:
        answered: whether an agent answered at the address.
        problem: the error when no agent answered.
        silent: whether nothing at all was said on a connection.
    """

    device: str
    address: str
    result: ConnectResult
    answered: bool
    problem: str = ""
    silent: bool = False


_FAILURES = {
    ConnectResult.REFUSED: (PORT_CLOSED, "refuses the connection"),
    ConnectResult.SILENT: (PORT_FILTERED, "does not answer"),
    ConnectResult.NO_ROUTE: (NO_ROUTE, "cannot be reached from this network"),
}


def judge_ports(ports: Sequence[PortFacts]) -> list[Finding]:
    findings = []
    for port in ports:
        if not port.answered:
            of_open = FROZEN if port.silent else NO_ANSWER
            kind, failure = _FAILURES.get(port.result, (of_open, f"is open, but: {port.problem}"))
            findings.append(Finding(kind, port.device, f"{port.address} {failure}"))
    return findings


@dataclass(frozen=True)
class ConnectionAttempt:
    """An attempt to connect, and what the system learnt of the route.

    Attributes:
        local: our IP address on the route; empty without a connection.
        segment_mtu: bytes of the largest IP packet that TCP agreed on; None without a connection.
        silent: whether the other side then said nothing to a caller who speaks HTTP/2 in plaintext. An agent
            answers, or ends the connection if it expects TLS.
    """

    result: ConnectResult
    local: str = ""
    segment_mtu: int | None = None
    silent: bool = False


def connect(address: str, timeout_s: float) -> ConnectionAttempt:
    try:
        with socket.create_connection(split_address(address), timeout=timeout_s) as stream:
            local, segment_mtu = str(stream.getsockname()[0]), _segment_mtu(stream)
            return ConnectionAttempt(ConnectResult.OPEN, local, segment_mtu, _is_silent(stream))
    except TimeoutError:
        return ConnectionAttempt(ConnectResult.SILENT)
    except ConnectionRefusedError:
        return ConnectionAttempt(ConnectResult.REFUSED)
    except OSError as error:
        # A neighbour that does not answer ARP is off, or behind a filter.
        return ConnectionAttempt(
            ConnectResult.SILENT if error.errno == errno.EHOSTUNREACH else ConnectResult.NO_ROUTE
        )


def _is_silent(stream: socket.socket) -> bool:
    try:
        stream.sendall(HTTP2_PREFACE)
        stream.recv(1)
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def _segment_mtu(stream: socket.socket) -> int:
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    options, (segment,) = info[5], struct.unpack_from("I", info, 16)
    ip_header = 40 if stream.family == socket.AF_INET6 else 20
    timestamps = _TCP_TIMESTAMP_BYTES if options & _TIMESTAMPS else 0
    return int(segment) + ip_header + 20 + timestamps
