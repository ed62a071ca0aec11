"""Addresses of agents, in the form host:port."""

from __future__ import annotations

import ipaddress

from flowedge.core.errors import BadRequestError

WILDCARDS = ("0.0.0.0", "::", "")


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port" or "[IPv6 host]:port".

    Raises:
        BadRequestError: when the address has neither form.
    """
    if "://" in address:
        raise BadRequestError(
            f"{address!r} is a URL, as a gateway (flowedge serve) has one for HTTP clients; give the address "
            "of an agent, host:port, as `flowedge devices` lists it"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadRequestError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_address(text: str) -> bool:
    """Return whether a text has the form host:port."""
    try:
        split_address(text)
    except BadRequestError:
        return False
    return True


def checked_address(address: str) -> str:
    """Return an address as it is.

    Raises:
        BadRequestError: when its form is not host:port.
    """
    split_address(address)
    return address


def join_address(host: str, port: int) -> str:
    """Return "host:port", with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether an address "host:port" can be reached from its own machine only.

    Raises:
        BadRequestError: when the address does not have this form.
    """
    host, _ = split_address(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a host name
        return False


def host_ip(host: str) -> str:
    """Return a host to listen on as an IP address; "localhost" gives 127.0.0.1.

    Raises:
        BadRequestError: when the host is any other name.
    """
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError as error:
        raise BadRequestError(f"the host is {host!r}; give an IP address of this device") from error
