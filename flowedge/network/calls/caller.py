"""Who has made a call, and the check of whether the caller may make it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from flowedge.network.grpc_handlers import Context


@dataclass(frozen=True)
class Caller:
    """Who has made a call.

    Attributes:
        key: what the caller's calls are counted by: the member of its certificate, its host in plaintext.
        address: where the call comes from.
        name: of the member, with its role; "" in plaintext.
        is_admin: whether the certificate is an admin's.
        is_device: whether the caller may be a device of a pipeline.
        may_know: whether errors may tell which files and ports exist: admins, draft nodes; all in plaintext.
    """

    key: str
    address: str
    name: str = ""
    is_admin: bool = False
    is_device: bool = True
    may_know: bool = True

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.name else self.address


class CallerCheck(Protocol):
    """Tells who calls, and refuses a call that the caller may not make."""

    def caller(self, context: Context) -> Caller:
        """Return who has made a call. Raises AccessError when that cannot be told."""

    def check(self, method: str, context: Context) -> None:
        """Raise AccessError if the caller may not call a method now."""

    def watching(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:
        """Return the context in which the call is served; the check may end the call meanwhile."""


class AnyCaller:
    """The check in plaintext: everyone may call everything."""

    def caller(self, context: Context) -> Caller:
        return caller_at(context)

    def check(self, method: str, context: Context) -> None:
        """See CallerCheck."""

    def watching(self, method: str, context: Context) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()


def caller_at(context: Context) -> Caller:
    """Return a caller that is known by its address only."""
    peer = str(context.peer())
    return Caller(peer.rpartition(":")[0] or peer, peer)
