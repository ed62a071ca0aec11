"""Addresses of agents, written host:port."""

from __future__ import annotations

import ipaddress

from flowedge.core.errors import BadRequestError

WILDCARDS = ("0.0.0.0", "::", "")


def split_address(address: str) -> tuple[str, int]:
    """The host and port of "host:port" or "[v6]:port"; BadRequestError when it is neither."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadRequestError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_address(address: str) -> str:
    """Return an address as it is. Errors as split_address."""
    split_address(address)
    return address


def join_address(host: str, port: int) -> str:
    """The two as one, with the brackets that an IPv6 host needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether "host:port" is reached from its own machine alone. Errors as split_address."""
    host, _ = split_address(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False


def host_ip(host: str) -> str:
    """An address to listen on as an IP address; BadRequestError when it is a name other than localhost."""
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError as error:
        raise BadRequestError(f"the host is {host!r}; give an IP address of this device") from error
