"""Whether agents can be reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from flowedge.doctor.finding import Finding, FindingKind, Severity

PORT_CLOSED = FindingKind(
    "port-closed",
    Severity.ERROR,
    "nothing listens at an agent's address",
    "Start the agent there with --host 0.0.0.0, or correct the port: flowedge agent says where it listens.",
)
PORT_FILTERED = FindingKind(
    "port-filtered",
    Severity.ERROR,
    "an agent's address does not answer at all",
    "Open the agent's TCP port in that device's firewall; see that the device is on and on this network.",
)
NO_ROUTE = FindingKind(
    "no-route",
    Severity.ERROR,
    "there is no way to an agent's address",
    "Put both devices on one network, or correct the address in discovery.peers.",
)
NOT_REACHED_BACK = FindingKind(
    "not-reached-back",
    Severity.ERROR,
    "another device cannot reach the agent of this one",
    "Open the agent's TCP port in this device's firewall, and have the agent listen on the network (--host "
    "0.0.0.0).",
)
NO_ANSWER = FindingKind(
    "no-answer",
    Severity.ERROR,
    "the port is open, but no FlowEdge agent answers as it should",
    "See the agent's log there; another program may hold the port.",
)
KINDS = (PORT_CLOSED, PORT_FILTERED, NO_ROUTE, NOT_REACHED_BACK, NO_ANSWER)


class ConnectResult(str, Enum):
    """What came of a TCP connection."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    NO_ROUTE = "no route"


@dataclass(frozen=True)
class PortFacts:
    """A connection to an agent's address.

    Attributes:
        answered: whether an agent answered there; problem: what was said when it did not.
    """

    device: str
    address: str
    reach: ConnectResult
    answered: bool
    problem: str = ""


_KIND = {
    ConnectResult.REFUSED: PORT_CLOSED,
    ConnectResult.SILENT: PORT_FILTERED,
    ConnectResult.NO_ROUTE: NO_ROUTE,
}
_WORDS = {
    ConnectResult.REFUSED: "refuses the connection",
    ConnectResult.SILENT: "does not answer",
    ConnectResult.NO_ROUTE: "cannot be reached from this network",
}


def judge_ports(ports: Sequence[PortFacts]) -> list[Finding]:
    """From the connections that were tried; one that answers is fine."""
    return [
        Finding(
            _KIND.get(port.reach, NO_ANSWER),
            port.device,
            f"{port.address} {_WORDS.get(port.reach, f'is open, but: {port.problem}')}",
        )
        for port in ports
        if not port.answered
    ]
