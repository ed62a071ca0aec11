"""The enrolment and renewal services of the CA's machine, which `flowedge cluster serve` runs."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.net.address import join_address, split_address
from flowedge.net.calls.admission import CallAdmission
from flowedge.net.calls.settings import CallLimits
from flowedge.net.grpc_handlers import Context
from flowedge.net.supervision import supervise
from flowedge.security.authority.authority import Authority, SignedCertificate
from flowedge.security.credentials.certificates import pem_of, renewal_time, utc_now
from flowedge.security.credentials.revocation import read_list
from flowedge.security.tls.connection_limits import ConnectionLimits
from flowedge.security.tls.guard import Guard, caller_of, refuse
from flowedge.security.tls.serving import RenewableServer, ServerIdentity, server_credentials
from flowedge.v1 import cluster_pb2 as pb
from flowedge.v1 import cluster_pb2_grpc as rpc

_MAX_REQUEST_BYTES = 16 << 10
_MAX_CALLS = 32  # at the same time
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
]
_STOP_GRACE_S = 2.0
_CHECK_S = 60.0  # between two looks at the age of the service's certificate

_log = logging.getLogger(__name__)


class EnrolmentService(rpc.EnrolmentServicer):
    """Serves callers that have no certificate yet."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def Authority(self, request: pb.AuthorityRequest, context: Context) -> pb.AuthorityReply:
        return pb.AuthorityReply(certificate=pem_of(self._authority.certificate))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.Membership:
        try:
            signed = self._authority.join(
                request.secret,
                request.name,
                request.signing_request,
                utc_now(),
                default_name=request.default_name,
            )
        except FlowEdgeError as error:
            await refuse(context, "flowedge.v1.Enrolment/Join", error)
        _log.info("%s joined from %s until %s", signed.holder.member, context.peer(), signed.holder.not_after)
        return _membership(self._authority, signed)

    async def Revoked(self, request: pb.RevokedRequest, context: Context) -> pb.RevokedReply:
        return pb.RevokedReply(revocation_list=self._authority.revocation_list(utc_now()))


class RenewalService(rpc.RenewalServicer):
    """Serves members."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.Membership:
        try:
            signed = self._authority.renew(caller_of(context), request.signing_request, utc_now())
        except FlowEdgeError as error:
            await refuse(context, "flowedge.v1.Renewal/Renew", error)
        _log.info("%s renewed its certificate until %s", signed.holder.member, signed.holder.not_after)
        return _membership(self._authority, signed)


def service_addresses(named: Sequence[str], port: int) -> list[str]:
    """The addresses of the enrolment service for a join token, host:port.

    named: HOST or HOST:PORT of each; if there are none, this machine's own addresses are returned.

    Raises:
        BadRequestError: when a name is not a valid address.
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


def serve_authority(authority: Authority, host: str, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until the process receives SIGTERM or SIGINT.

    ready: called when devices can join.

    Raises:
        DeviceError: when a port cannot be opened.
    """
    asyncio.run(_serve(authority, host, ready))


async def _serve(authority: Authority, host: str, ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    certificate = _ServiceCertificate(authority)
    enrolment, renewal = _servers(authority, certificate)
    for server, port in ((enrolment, authority.port), (renewal, authority.port + 1)):
        server.listen(join_address(host, port), "the cluster's CA")
        await server.start()
    print(
        f"cluster {authority.name} ({authority.id}) listening on {join_address(host, authority.port)}",
        flush=True,
    )
    ready()
    servers = enrolment, renewal
    keeping = supervise("the renewal of the service's certificate", lambda: certificate.keep_fresh(servers))
    renewing = asyncio.create_task(keeping)
    try:
        await stop.wait()
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await asyncio.gather(enrolment.stop(_STOP_GRACE_S), renewal.stop(_STOP_GRACE_S))


def _servers(
    authority: Authority, certificate: _ServiceCertificate
) -> tuple[RenewableServer, RenewableServer]:
    """The enrolment server, which anyone may call, and the renewal server, which members may call."""
    limits = CallLimits(calls=_MAX_CALLS, calls_per_caller=_MAX_CALLS // 2, reserved_calls=0)
    enrolment = RenewableServer(
        _OPTIONS,
        CallAdmission(None, limits),
        lambda: certificate.identity(require_client=False),
        ConnectionLimits(),
    )
    rpc.add_EnrolmentServicer_to_server(EnrolmentService(authority), enrolment)
    guard = Guard(lambda: read_list(authority.revocation_list(utc_now()), authority.certificate))
    renewal = RenewableServer(
        _OPTIONS,
        CallAdmission(guard, limits),
        lambda: certificate.identity(require_client=True),
        guard.connections,
    )
    rpc.add_RenewalServicer_to_server(RenewalService(authority), renewal)
    return enrolment, renewal


class _ServiceCertificate:
    """The service's own certificate. The service signs a new one itself when it is due."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._key, self._certificate, self._holder = authority.service_credentials(utc_now())

    def identity(self, *, require_client: bool) -> ServerIdentity:
        """The identity of a server of the service."""
        credentials = server_credentials(
            self._key,
            self._certificate,
            pem_of(self._authority.certificate),
            require_client=require_client,
        )
        return ServerIdentity(credentials, self._holder.not_after)

    async def keep_fresh(self, servers: Sequence[RenewableServer]) -> None:
        """Sign a new certificate whenever it is due, and have the servers show it, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            now = utc_now()
            if now >= renewal_time(self._holder):
                self._key, self._certificate, self._holder = self._authority.service_credentials(now)
            for server in servers:
                if server.expires != self._holder.not_after:
                    await server.renew()


def _membership(authority: Authority, signed: SignedCertificate) -> pb.Membership:
    return pb.Membership(
        certificate=signed.certificate,
        revocation_list=signed.revocation_list,
        renewal_port=authority.port + 1,
        cluster_name=authority.name,
    )


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
