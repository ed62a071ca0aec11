"""The enrolment and renewal services of the CA's machine, which `flowedge cluster serve` runs."""

# ruff: noqa: N802, ARG002 (method names and arguments are gRPC's)

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import psutil

from flowedge.cluster.authority import Authority, SignedCertificate
from flowedge.cluster.certificates import pem_of, renewal_time, utc_now
from flowedge.cluster.join_throttle import JoinThrottle
from flowedge.cluster.revocation import RevocationList, read_list
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.cluster.tls.call_limits import CallLimits
from flowedge.cluster.tls.connection_limits import ConnectionLimits
from flowedge.cluster.tls.guard import Guard, caller_of
from flowedge.cluster.tls.renewable_server import RenewableServer, ServerIdentity
from flowedge.cluster.tls.serving import server_credentials
from flowedge.core.errors import AccessError, BadRequestError, FlowEdgeError
from flowedge.network.address import join_address, split_address
from flowedge.network.grpc_handlers import Context
from flowedge.network.grpc_status import abort
from flowedge.network.log_rate import LimitedLog
from flowedge.network.supervision import supervise
from flowedge.v1 import cluster_pb2 as pb
from flowedge.v1 import cluster_pb2_grpc as rpc

_MAX_REQUEST_BYTES = 16 << 10
_MAX_CALLS = 32  # at the same time
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
]
_STOP_GRACE_S = 2.0
_OTHER_PORT = "end that program; a cluster's port is chosen with flowedge cluster init --port"
_CHECK_S = 60.0  # between two looks at the age of the service's certificate

_LEDGER_THREADS = 4
_REFUSALS_LOGGED = 60  # attempts to join a minute
_LIST_AGE_S = 1.0  # after which the list that the guard checks callers against is read again

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LedgerWork:
    """Runs the work of a CA in threads: each transaction waits for the disk, and for other processes."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._threads = ThreadPoolExecutor(_LEDGER_THREADS, thread_name_prefix="ledger")
        self._read_s = time.monotonic()
        self._reading = False
        self._list = self._read()

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def recent_list(self) -> RevocationList:
        """The revocation list of a second ago. An older one is read again in a thread, without waiting."""
        if time.monotonic() - self._read_s > _LIST_AGE_S and not self._reading:
            self._reading = True
            self._threads.submit(self._refresh)
        return self._list

    def _refresh(self) -> None:
        try:
            self._list = self._read()
        except (FlowEdgeError, sqlite3.Error, OSError) as error:
            _log.warning("the revocation list cannot be read from the ledger: %s", error)
        finally:
            self._read_s = time.monotonic()
            self._reading = False

    def _read(self) -> RevocationList:
        return read_list(self._authority.revocation_list(utc_now()), self._authority.certificate)


class EnrolmentService(rpc.EnrolmentServicer):
    """Serves callers that have no certificate yet."""

    def __init__(self, authority: Authority, ledger: LedgerWork) -> None:
        self._authority = authority
        self._ledger = ledger
        self._throttle = JoinThrottle()
        # Whoever guesses may have many addresses.
        self._refusals = LimitedLog(_log, "call_refused", lines=_REFUSALS_LOGGED)
        self._newer_lists = LimitedLog(_log, "newer_revocation_list")

    async def Authority(self, request: pb.AuthorityRequest, context: Context) -> pb.AuthorityReply:
        return pb.AuthorityReply(certificate=pem_of(self._authority.certificate))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.Membership:
        address = _host_of(context.peer())
        wait_s = self._throttle.wait_s(address, time.monotonic())
        if wait_s > 0:  # without a line in the log: the failure before has one
            await abort(context, _too_many(address, wait_s))
        try:
            signed = await self._ledger.run(
                lambda: self._authority.join(
                    request.secret,
                    request.name,
                    request.signing_request,
                    utc_now(),
                    default_name=request.default_name,
                )
            )
        except FlowEdgeError as error:
            await self._refuse(context, address, error)
        self._throttle.joined(address)
        _log.info("%s joined from %s until %s", signed.holder.member, context.peer(), signed.holder.not_after)
        return _membership(self._authority, signed)

    async def Revoked(self, request: pb.RevokedRequest, context: Context) -> pb.RevokedReply:
        pem = await self._ledger.run(lambda: self._authority.revocation_list(utc_now()))
        number = read_list(pem, self._authority.certificate).number
        if request.number > number:
            peer = str(context.peer())
            text = (
                f"{_host_of(peer)} says that it has revocation list number {request.number}, and the newest "
                f"list here has number {number}: this CA was restored from an older copy, and may not know "
                "what was revoked since. Run `flowedge cluster restore` here"
            )
            self._newer_lists.add(text, peer=peer, reason="a newer revocation list")
        return pb.RevokedReply(revocation_list=pem)

    async def _refuse(self, context: Context, address: str, error: FlowEdgeError) -> NoReturn:
        """End an attempt to join with an error; count and log it."""
        wait_s, peer = self._throttle.failed(address, time.monotonic()), str(context.peer())
        text = f"refused flowedge.v1.Enrolment/Join from {peer}: {error}"
        if wait_s > 0:
            text += (
                f"; {address} may try to join again in {wait_s:.0f} s, {self._throttle.failures} attempts of "
                "all addresses have failed"
            )
        self._refusals.add(text, peer=peer, reason=str(error), code=error.code)
        await abort(context, error)


class RenewalService(rpc.RenewalServicer):
    """Serves members."""

    def __init__(self, authority: Authority, ledger: LedgerWork) -> None:
        self._authority = authority
        self._ledger = ledger

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.Membership:
        holder = caller_of(context)
        signed = await self._ledger.run(
            lambda: self._authority.renew(holder, request.signing_request, utc_now())
        )
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
        server.listen(join_address(host, port), "of the cluster's CA", _OTHER_PORT)
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
    ledger = LedgerWork(authority)
    limits = CallLimits(calls=_MAX_CALLS, calls_per_caller=_MAX_CALLS // 2, reserved_calls=0)
    enrolment = RenewableServer(
        _OPTIONS,
        CallAdmission(None, limits),
        lambda: certificate.identity(require_client=False),
        ConnectionLimits(),
    )
    rpc.add_EnrolmentServicer_to_server(EnrolmentService(authority, ledger), enrolment)
    guard = Guard(ledger.recent_list)
    renewal = RenewableServer(
        _OPTIONS,
        CallAdmission(guard, limits),
        lambda: certificate.identity(require_client=True),
        guard.connections,
    )
    rpc.add_RenewalServicer_to_server(RenewalService(authority, ledger), renewal)
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


def _host_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as "ipv4:192.168.0.7:41234", without the port."""
    host, _, port = peer.rpartition(":")
    return host if port.isdigit() else peer


def _too_many(address: str, wait_s: float) -> AccessError:
    return AccessError(f"too many attempts to join from {address} have failed; try again in {wait_s:.0f} s")


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
