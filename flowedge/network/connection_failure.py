"""Why a connection to a device failed, in the words of the person who reads it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from flowedge.core.errors import DeviceLostError
from flowedge.network.address import split_address
from flowedge.network.deadline import within

TLS_HINT = "; if the device belongs to a cluster, add this machine to it first (flowedge join)"

_ENDED = "its agent ended, or its network failed"
_NOT_LISTENING = "nothing listens there: its agent does not run, or has another port"
_NO_WAY = "there is no way to it: it is switched off, or it lost its network"
_SILENT = "it does not answer: it is switched off, or it lost its network"
_NO_NAME = "no device has this name on the network, or its network cannot be asked for names"

_OF_NUMBER = {
    errno.ECONNREFUSED: _NOT_LISTENING,
    errno.ECONNRESET: _ENDED,
    errno.ECONNABORTED: _ENDED,
    errno.EPIPE: _ENDED,
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.EHOSTDOWN: _NO_WAY,
    errno.ETIMEDOUT: _SILENT,
}
# Texts of gRPC, in the order in which they are looked for: one may hold another's.
_OF_GRPC = (
    ("Connection refused", _NOT_LISTENING),
    ("No route to host", _NO_WAY),
    ("Network is unreachable", _NO_WAY),
    ("Host is down", _NO_WAY),
    ("DNS", _NO_NAME),
    ("Domain name not found", _NO_NAME),
    ("timed out", _SILENT),
    ("watchdog timeout", _SILENT),
    ("ping timeout", _SILENT),
    ("Timeout occurred", _SILENT),
    ("Socket closed", _ENDED),
    ("Stream removed", _ENDED),
    ("Connection reset by peer", _ENDED),
    ("Connection aborted", _ENDED),
    ("Broken pipe", _ENDED),
    ("Endpoint closing", _ENDED),
    ("GOAWAY", _ENDED),
)


def why_of_socket(error: OSError | EOFError) -> str:
    """Return why a socket could not be connected, or ended."""
    if isinstance(error, EOFError):
        return "it closed the connection"
    if isinstance(error, socket.gaierror):
        return _NO_NAME
    number = error.errno if error.errno is not None and error.errno > 0 else None
    if number is None:  # asyncio joins the errors of several addresses to one text
        return why_of_grpc(str(error)) or type(error).__name__
    return _OF_NUMBER.get(number, os.strerror(number))


def why_of_grpc(details: str) -> str:
    """Return what gRPC's details of a failed call mean; the details themselves if that is not known."""
    return next((words for sign, words in _OF_GRPC if sign in details), details)


async def check_name(address: str, timeout_s: float = 5.0) -> None:
    """Check that the host of an address host:port can be looked up.

    Raises:
        DeadlineError: when there is no answer within the time.
        DeviceLostError: when no machine has its name.
    """
    host, port = split_address(address)
    try:
        await within(timeout_s, asyncio.get_running_loop().getaddrinfo(host, port), f"{host} was not found")
    except OSError as error:
        raise DeviceLostError(address, why_of_socket(error)) from error
