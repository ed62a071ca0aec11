"""Who calls: the check of every caller's certificate, before anything of the call is received."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from flowedge.cluster.certificate_role import (
    DEVICES,
    PEOPLE,
    CertificateRole,
    may_call,
    roles_needed,
    text_of,
)
from flowedge.cluster.certificates import check_time, read_certificate, utc_now
from flowedge.cluster.member import CertificateHolder, Member, holder_of
from flowedge.cluster.revocation import RevocationList
from flowedge.cluster.tls.call_admission import Caller, caller_at
from flowedge.cluster.tls.connection_limits import ConnectionLimits
from flowedge.core.errors import AccessError
from flowedge.network.grpc_handlers import Context

_CERTIFICATE = "x509_pem_cert"  # key in gRPC's auth context


@dataclass(eq=False)
class _OpenCall:
    holder: CertificateHolder
    peer: str  # gRPC's name of it
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    ended: AccessError | None = None


class Guard:
    """Refuses a caller whose certificate is revoked or out of date, or whose role may not call the RPC.

    It is the CallerCheck of servers in mutual TLS, which has verified the certificate's signature when the
    connection was made.

    Attributes:
        connections: is told whose the connections are, and which of them have to end.
    """

    def __init__(self, revoked: Callable[[], RevocationList]) -> None:
        """revoked: returns the latest revocation list."""
        self.connections = ConnectionLimits()
        self._revoked = revoked
        self._open: set[_OpenCall] = set()

    def caller(self, context: Context) -> Caller:
        member = caller_of(context).member
        is_admin = CertificateRole.ADMIN in member.roles
        return Caller(
            key=member.uri,
            address=str(context.peer()),
            name=str(member),
            is_admin=is_admin,
            is_device=not member.roles.isdisjoint(DEVICES),
        )

    def check(self, method: str, context: Context) -> None:
        """Raise AccessError if the caller may not call a method now."""
        holder, peer = caller_of(context), str(context.peer())
        try:
            self._revoked().check(holder)
            check_time(holder, utc_now())
        except AccessError:
            self.connections.refuse(peer)
            raise
        self.connections.prove(peer, holder.member.uri)
        if not may_call(method, holder.member.roles):
            raise _not_allowed(method, holder.member)

    @asynccontextmanager
    async def ends_when_revoked(self, method: str, context: Context) -> AsyncIterator[None]:  # noqa: ARG002
        """End the call with an AccessError when its certificate is revoked or expires in the context."""
        call = _OpenCall(caller_of(context), str(context.peer()))
        self._open.add(call)
        left = call.holder.not_after - utc_now()
        expiry = asyncio.get_running_loop().call_later(left.total_seconds(), self._end_expired, call)
        try:
            yield
        except asyncio.CancelledError:
            if call.ended is not None and not context.done():
                raise call.ended from None
            raise
        finally:
            expiry.cancel()
            self._open.discard(call)

    def end_revoked(self) -> None:
        """End the running calls of callers whose certificate has been revoked since."""
        for call in list(self._open):
            try:
                self._revoked().check(call.holder)
            except AccessError as error:
                self._end(call, error)

    def _end_expired(self, call: _OpenCall) -> None:
        holder = call.holder
        error = f"the certificate of {holder.member} expired on {holder.not_after}; call again with a new one"
        self._end(call, AccessError(error))

    def _end(self, call: _OpenCall, error: AccessError) -> None:
        call.ended = error
        self.connections.refuse(call.peer)
        if call.task is not None:
            call.task.cancel()


def caller_of(context: Context) -> CertificateHolder:
    """Return the holder of the caller's certificate; raise AccessError if the caller has shown none."""
    shown = context.auth_context().get(_CERTIFICATE)
    if not shown:
        raise AccessError("the caller showed no certificate")
    return _holder(next(iter(shown)))


def certified_name(context: Context) -> str | None:
    """Return the name in the caller's certificate, None in plaintext."""
    return caller_of(context).member.name if _CERTIFICATE in context.auth_context() else None


def certified_member(context: Context) -> str | None:
    """Return the URI in the caller's certificate (see Member.uri), None in plaintext."""
    return None if certified_name(context) is None else caller_of(context).member.uri


def caller_key(context: Context) -> str:
    """Return what the caller's calls are counted by (see Caller.key)."""
    return certified_member(context) or caller_at(context).key


def only_giver(context: Context) -> str | None:
    """Return the member whose roles the caller may release; None for the roles of all members.

    A draft node releases its own pipelines. People may release every pipeline.
    """
    if certified_name(context) is None:
        return None
    member = caller_of(context).member
    return member.uri if member.roles.isdisjoint(PEOPLE) else None


def _not_allowed(method: str, member: Member) -> AccessError:
    """The refusal of a call that a member's roles do not allow, with the commands that would allow it."""
    needed = roles_needed(method, member.roles)
    refused = f"{member} may not call {method.removeprefix('/')}"
    if not needed:
        return AccessError(f"{refused}: no member may, or its version is another")
    added = text_of(needed - member.roles)
    return AccessError(
        f"{refused}, which takes the role {added}. To give {member.name} that role, run `flowedge cluster "
        f"token --role {text_of(needed)} --name {member.name}` where the cluster was made, then `flowedge "
        f"join --replace` on the machine of {member.name}"
    )


@functools.lru_cache(maxsize=256)
def _holder(pem: bytes) -> CertificateHolder:
    return holder_of(read_certificate(pem))
