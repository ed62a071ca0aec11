"""A gRPC server whose certificate is renewed while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from flowedge.cluster.certificates import utc_now
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.cluster.tls.connection_limits import ConnectionLimits
from flowedge.cluster.tls.receiving import SERVER_OPTIONS
from flowedge.core.errors import DeviceError
from flowedge.core.log_fields import about
from flowedge.device.process import raise_descriptor_limit
from flowedge.network.address import join_address
from flowedge.network.ports import OTHER_PORT, check_can_listen
from flowedge.network.supervision import supervise

HANDSHAKE_S = 10.0  # a connection is ended unless its handshakes are over within this
MAX_CONNECTIONS = 4096  # of a server, handshakes included; the file descriptors may allow fewer
MAX_STREAMS = 128  # calls at the same time on one connection
IDLE_S = 300.0  # a connection without any call is ended after this
METADATA_BYTES = 16 << 10  # of one call

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerIdentity:
    """What a server shows to its callers.

    Attributes:
        expires: when its certificate does.
    """

    credentials: grpc.ServerCredentials
    expires: datetime.datetime


class RenewableServer:
    """A gRPC server on one port, whose certificate can be renewed while it serves.

    When gRPC is handed new credentials at a handshake, it frees the old ones while other handshakes use them,
    which ends the process (grpc's issue 36693). So the credentials of a server never change: a second server
    with the new ones takes the port over. The first one serves the calls that it has until they end, or until
    its certificate expires.
    """

    def __init__(
        self,
        options: Sequence[tuple[str, Any]],
        admission: CallAdmission,
        identify: Callable[[], ServerIdentity] | None = None,
        connections: ConnectionLimits | None = None,
    ) -> None:
        """
        admission: of every call.
        identify: returns the present identity; None for plaintext.
        connections: ends the connections of peers that have too many; None to let them be.
        """
        # Two servers of this process share the port for a moment. In plaintext nothing is ever renewed, and
        # two agents on one port would share its connections.
        shared = ("grpc.so_reuseport", int(identify is not None))
        self._options = [*options, *SERVER_OPTIONS, *_limits(), shared]
        self._admission = admission
        self._identify = identify
        self._connections = connections
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._address = ""
        self._port = 0
        self._device = ""
        self._identity: ServerIdentity | None = None
        self._server: grpc.aio.Server | None = None
        self._replaced: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def expires(self) -> datetime.datetime | None:
        """When the certificate for new connections expires; None in plaintext, and before `listen`."""
        return self._identity.expires if self._identity is not None else None

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio.Server; to be called before `listen`."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """See grpc.aio.Server, which does nothing here either."""

    def listen(self, address: str, device: str, other_port: str = OTHER_PORT) -> int:
        """Choose the address to listen at; return the port, a free one if the address has port 0.

        Args:
            other_port: what to do if the port is in use, for the error.

        Raises:
            DeviceError: when a server cannot listen there; it names `device`.
        """
        self._device = device
        host, port = _split_listen_address(address)
        # A port that may be shared would be, and gRPC writes an error of its own to the log.
        check_can_listen(host, port, device, other_port)
        self._server = self._new()
        self._identity = self._identify() if self._identify is not None else None
        port = _add_port(self._server, address, self._identity, device)
        self._address = join_address(host, port)
        self._port = port
        return port

    async def start(self) -> None:
        """Serve at the address of `listen`."""
        assert self._server is not None, "listen comes first"
        self._server.add_generic_rpc_handlers(tuple(self._handlers))
        await self._server.start()
        if self._connections is not None:
            ends_when_revoked = functools.partial(self._connections.run, self._port)
            self._watch = asyncio.create_task(supervise("the watch over connections", ends_when_revoked))

    async def renew(self) -> None:
        """Serve new connections with the present identity; the calls that are running go on.

        Raises:
            DeviceError: when the second server cannot listen. The first one goes on then.
        """
        assert self._identify is not None and self._server is not None and self._identity is not None
        identity = self._identify()
        new = self._new()
        new.add_generic_rpc_handlers(tuple(self._handlers))
        _add_port(new, self._address, identity, self._device)
        await new.start()
        old, left = self._server, self._identity.expires - utc_now()
        self._server, self._identity = new, identity
        draining = asyncio.create_task(old.stop(max(left.total_seconds(), 0.0)))
        self._replaced[old] = draining
        draining.add_done_callback(lambda _: self._replaced.pop(old, None))
        fields = about(event="server_renewed", address=self._address)
        _log.info("new connections get the renewed certificate", extra=fields)

    def _new(self) -> grpc.aio.Server:
        return grpc.aio.server(options=self._options, interceptors=(self._admission,))

    async def stop(self, grace_s: float | None) -> None:
        """Refuse new calls, and end those that are running after `grace_s` seconds."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        servers = [*self._replaced, *([self._server] if self._server is not None else [])]
        await asyncio.gather(*(server.stop(grace_s) for server in servers))


def _split_listen_address(address: str) -> tuple[str, int]:
    """Return host and port of an address to listen at, whose port may be 0."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _limits() -> list[tuple[str, int]]:
    """Return the options that limit what callers take, in plaintext as well."""
    connections = min(MAX_CONNECTIONS, raise_descriptor_limit() // 2)
    return [
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ]


def _add_port(server: grpc.aio.Server, address: str, identity: ServerIdentity | None, device: str) -> int:
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.credentials)
    except RuntimeError as error:
        raise DeviceError(device, f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise DeviceError(device, f"cannot listen on {address}")
    return int(port)
