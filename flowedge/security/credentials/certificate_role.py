"""What the members of a cluster may do: which roles may call which RPC, and which may be called."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class CertificateRole(str, Enum):
    """What a certificate was issued for."""

    AGENT = "agent"  # a device that holds layers
    DRAFT_NODE = "draft-node"  # a device that may lead a pipeline, and hold layers as well
    CLIENT = "client"  # a person or a program that asks
    ADMIN = "admin"  # whoever made the cluster; may do what all others may
    AUTHORITY = "authority"  # the service that signs certificates; calls nobody


_EVERYONE = frozenset(
    {CertificateRole.AGENT, CertificateRole.DRAFT_NODE, CertificateRole.CLIENT, CertificateRole.ADMIN}
)
_DEVICES = frozenset({CertificateRole.AGENT, CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})
LEADERS = frozenset({CertificateRole.DRAFT_NODE, CertificateRole.ADMIN})  # may be draft nodes
_PEOPLE = frozenset({CertificateRole.CLIENT, CertificateRole.ADMIN})

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
    "/flowedge.v1.Measure/Sink": _DEVICES,
    "/flowedge.v1.Measure/Ping": _DEVICES,
    "/flowedge.v1.Pipeline/InBand": _DEVICES,
    "/flowedge.v1.Pipeline/Express": LEADERS,
    "/flowedge.v1.Renewal/Renew": _EVERYONE,
    "/flowedge.v1.Weights/Catalogue": _EVERYONE,
    "/flowedge.v1.Weights/Look": _EVERYONE,
    "/flowedge.v1.Weights/Have": _EVERYONE,
    "/flowedge.v1.Weights/Read": _EVERYONE,
    "/grpc.health.v1.Health/Check": _EVERYONE,
    "/grpc.health.v1.Health/Watch": _EVERYONE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _PEOPLE,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _PEOPLE,
}
"""Who may call what; an RPC that is not named here is refused to everyone."""

SERVING = _DEVICES
"""Roles of those who may be called as a device: a client's certificate serves nothing."""


def may_call(method: str, role: CertificateRole) -> bool:
    """Whether this role may call the RPC of a full name, such as "/flowedge.v1.Agent/Describe"."""
    return role in CALLERS.get(method, ())
