"""The roles of a cluster's members, and which RPCs each role may call."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class CertificateRole(str, Enum):
    """The role that a certificate was issued for."""

    AGENT = "agent"  # a device that runs layers
    DRAFT_NODE = "draft-node"  # a device that may lead a pipeline, and run layers too
    CLIENT = "client"  # a person or program that uses a pipeline
    ADMIN = "admin"  # the person who made the cluster; has the rights of all other roles
    AUTHORITY = "authority"  # the enrolment service; may call no RPC


DEVICES = frozenset({CertificateRole.AGENT, CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})  # may serve
LEADERS = frozenset({CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})  # may be draft nodes
_PEOPLE = frozenset({CertificateRole.CLIENT, CertificateRole.ADMIN})
_EVERYONE = DEVICES | _PEOPLE

CALLERS: Mapping[str, frozenset[CertificateRole]] = {
    "/flowedge.v1.Agent/Describe": _EVERYONE,
    "/flowedge.v1.Agent/Clock": _EVERYONE,
    "/flowedge.v1.Agent/Timeline": _PEOPLE | LEADERS,
    "/flowedge.v1.Agent/BecomeStage": LEADERS,
    "/flowedge.v1.Agent/BecomeDraftNode": _PEOPLE,
    "/flowedge.v1.Agent/Release": _PEOPLE | LEADERS,
    "/flowedge.v1.Generation/Generate": _PEOPLE,
    "/flowedge.v1.Measure/MeasureDevice": _PEOPLE,
    "/flowedge.v1.Measure/MeasureLink": _PEOPLE,
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
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _PEOPLE,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _PEOPLE,
}
"""The roles that may call each RPC; any other RPC is refused to all roles."""


def may_call(method: str, role: CertificateRole) -> bool:
    """Return whether a role may call an RPC, given by its full name such as "/flowedge.v1.Agent/Describe"."""
    return role in CALLERS.get(method, ())
