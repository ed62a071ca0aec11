"""Finding out whether a server of HTTP/2 answers at an address, without gRPC.

A channel of gRPC that is closed while it connects keeps its socket, for 20 s if the server says nothing. So a
caller of many unknown addresses asks with a socket of its own first, which is closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib

from flowedge.core.errors import DeviceLostError
from flowedge.network.address import split_address

_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # an empty SETTINGS frame
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS  # RFC 9113, section 3.4
_HEADER_BYTES = 9
_SETTINGS_TYPE = 4


async def check_http2(address: str, timeout_s: float) -> None:
    """Check that a server at an address begins to speak HTTP/2 in plaintext.

    Raises:
        DeviceLostError: when it does not within `timeout_s`.
    """
    try:
        await asyncio.wait_for(_first_frame(address), timeout_s)
    except asyncio.TimeoutError as error:
        raise DeviceLostError(address, f"no answer within {timeout_s:g} s") from error
    except (OSError, asyncio.IncompleteReadError) as error:
        raise DeviceLostError(address, f"the connection failed: {error}") from error


async def _first_frame(address: str) -> None:
    reader, writer = await asyncio.open_connection(*split_address(address))
    try:
        writer.write(_PREFACE)
        header = await reader.readexactly(_HEADER_BYTES)
        if header[3] != _SETTINGS_TYPE:
            raise DeviceLostError(address, "it does not speak HTTP/2, so it is not a FlowEdge agent")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
