"""The member that calls an RPC, for services that serve some members only."""

from __future__ import annotations

from flowedge.cluster.credentials.certificate_role import PEOPLE
from flowedge.cluster.tls.guard import caller_of, certified_name
from flowedge.network.calls.caller import caller_at
from flowedge.network.grpc_handlers import Context


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
