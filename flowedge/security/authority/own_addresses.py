"""Where the enrolment service of this machine is reached."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil

from flowedge.core.errors import BadRequestError
from flowedge.net.address import join_address, split_address


def service_addresses(named: Sequence[str], port: int) -> list[str]:
    """The addresses of a token: those named, HOST or HOST:PORT, else this machine's own.

    BadRequestError for a name that is no address.
    """
    if named:
        return [_with_port(text, port) for text in named]
    found = [
        ip.address
        for addresses in psutil.net_if_addrs().values()
        for ip in addresses
        if ip.family == socket.AF_INET and not ipaddress.ip_address(ip.address).is_loopback
    ]
    return [join_address(host, port) for host in found or ["127.0.0.1"]]


def _with_port(text: str, port: int) -> str:
    if not text:
        raise BadRequestError("--address is empty; give HOST or HOST:PORT")
    try:
        host, own_port = split_address(text)
    except BadRequestError:
        host, own_port = text.removeprefix("[").removesuffix("]"), port
    address = join_address(host, own_port)
    split_address(address)
    return address
