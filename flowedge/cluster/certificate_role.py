"""The roles of a cluster's members, and which RPCs each role may call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from flowedge.core.errors import BadRequestError


class CertificateRole(str, Enum):
    """A role that a certificate was issued for. A certificate has one role or several, see `Roles`."""

    AGENT = "agent"  # a device that runs layers
    DRAFT_NODE = "draft-node"  # a device that may lead a pipeline, and run layers too
    CLIENT = "client"  # a person or program that uses a pipeline
    ADMIN = "admin"  # the person who made the cluster; has the rights of all other roles
    AUTHORITY = "authority"  # the enrolment service; may call no RPC


Roles: TypeAlias = frozenset[CertificateRole]
"""The roles of one certificate, whose holder may do what any of them allows."""
_ALONE = frozenset({CertificateRole.ADMIN, CertificateRole.AUTHORITY})  # never beside another role
_SUGGESTED = (CertificateRole.CLIENT, CertificateRole.AGENT, CertificateRole.DRAFT_NODE)  # least rights first

DEVICES = frozenset({CertificateRole.AGENT, CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})  # may serve
LEADERS = frozenset({CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})  # may be draft nodes
PEOPLE = frozenset({CertificateRole.CLIENT, CertificateRole.ADMIN})  # may ask for answers
_EVERYONE = DEVICES | PEOPLE

CALLERS: Mapping[str, frozenset[CertificateRole]] = {
    "/flowedge.v1.Agent/Describe": _EVERYONE,
    "/flowedge.v1.Agent/Membership": frozenset({CertificateRole.ADMIN}),
    "/flowedge.v1.Agent/Clock": _EVERYONE,
    "/flowedge.v1.Agent/Timeline": PEOPLE | LEADERS,
    "/flowedge.v1.Agent/BecomeStage": LEADERS,
    "/flowedge.v1.Agent/BecomeDraftNode": PEOPLE,
    "/flowedge.v1.Agent/StandBy": LEADERS,
    "/flowedge.v1.Agent/Prepare": LEADERS,
    "/flowedge.v1.Agent/Release": PEOPLE | LEADERS,
    "/flowedge.v1.Generation/Generate": PEOPLE,
    "/flowedge.v1.Generation/Watch": PEOPLE,
    "/flowedge.v1.Measure/MeasureDevice": PEOPLE | LEADERS,
    "/flowedge.v1.Measure/MeasureLink": PEOPLE | LEADERS,
    "/flowedge.v1.Measure/Sink": DEVICES,
    "/flowedge.v1.Measure/Ping": DEVICES,
    "/flowedge.v1.Pipeline/InBand": DEVICES,
    "/flowedge.v1.Pipeline/Express": LEADERS,
    "/flowedge.v1.Renewal/Renew": _EVERYONE,
    "/flowedge.v1.Weights/Catalogue": _EVERYONE,
    "/flowedge.v1.Weights/Look": LEADERS,
    "/flowedge.v1.Weights/Have": _EVERYONE,
    "/flowedge.v1.Weights/Read": _EVERYONE,
    "/grpc.health.v1.Health/Check": _EVERYONE,
    "/grpc.health.v1.Health/Watch": _EVERYONE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": PEOPLE,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": PEOPLE,
}
"""The roles that may call each RPC; any other RPC is refused to all roles."""


def read_roles(text: str) -> Roles:
    """Return the roles in a list such as "client,agent".

    Raises:
        BadRequestError: when a word is no role, or a role that stands alone is beside another role.
    """
    words = [word.strip() for word in text.split(",")]
    known = {role.value: role for role in CertificateRole}
    unknown = [word for word in words if word not in known]
    if unknown:
        joining = ", ".join(role.value for role in CertificateRole if role is not CertificateRole.AUTHORITY)
        raise BadRequestError(f"{unknown[0]!r} is no role; the roles are {joining}")
    roles = frozenset(known[word] for word in words)
    alone = roles & _ALONE
    if alone and len(roles) > 1:
        raise BadRequestError(
            f"the role {text_of(alone)} cannot be combined with other roles; an admin has the rights of all "
            "of them, so give admin alone"
        )
    return roles


def text_of(roles: Iterable[CertificateRole]) -> str:
    """Return roles as text, such as "agent,client", always in the same order."""
    given = frozenset(roles)
    return ",".join(role.value for role in CertificateRole if role in given)


def may_call(method: str, roles: Roles) -> bool:
    """Return whether any of the roles may call an RPC.

    method: full name of the RPC, such as "/flowedge.v1.Agent/Describe".
    """
    return not roles.isdisjoint(CALLERS.get(method, ()))


def roles_needed(method: str, roles: Roles) -> Roles:
    """Return the given roles and the role of fewest rights that may call an RPC.

    Returns an empty set if no role may be added that would allow the call.
    """
    allowed = CALLERS.get(method, frozenset())
    added = next((role for role in _SUGGESTED if role in allowed), None)
    return frozenset() if added is None or roles & _ALONE else roles | {added}
