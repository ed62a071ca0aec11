"""Whether devices run the same version, and whether they can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.client.survey import Duplicate
from flowedge.doctor.finding import ERROR, INFO, WARNING, Finding
from flowedge.version import PROTOCOL_VERSION, VERSION

PROTOCOL = ERROR(
    "protocol-mismatch",
    "a device speaks another version of the protocol",
    "Install the same version of FlowEdge on all devices.",
)
VERSION_DIFFERS = INFO(
    "version-differs",
    "a device runs another version of FlowEdge, of the same protocol",
    "Nothing has to be done; the same version on all devices is easier to reason about.",
)
SAME_ID = ERROR(
    "same-id",
    "two devices say the same id",
    "Delete the file device-id in the state directory of one of them and start its agent again; a copied SD "
    "card brings it along.",
)
SAME_NAME = WARNING(
    "same-name",
    "two devices have the same name",
    "Name one of them: `flowedge agent --name`, or agent.name in its configuration. A member of a cluster "
    "joins again under another name: `flowedge join --replace --name NAME`.",
)
KINDS = (PROTOCOL, VERSION_DIFFERS, SAME_ID, SAME_NAME)


@dataclass(frozen=True)
class VersionFacts:
    device: str
    protocol: int
    version: str


def judge_versions(
    versions: Sequence[VersionFacts], own: VersionFacts = VersionFacts("", PROTOCOL_VERSION, VERSION)
) -> list[Finding]:
    findings = []
    for facts in versions:
        if facts.protocol != own.protocol:
            detail = (
                f"it speaks protocol {facts.protocol} (FlowEdge {facts.version}), this device {own.protocol} "
                f"(FlowEdge {own.version})"
            )
            findings.append(Finding(PROTOCOL, facts.device, detail))
        elif facts.version != own.version:
            detail = f"it runs FlowEdge {facts.version}, this device {own.version}"
            findings.append(Finding(VERSION_DIFFERS, facts.device, detail))
    return findings


def judge_duplicates(found: Sequence[Duplicate]) -> list[Finding]:
    return [
        Finding(SAME_ID if same.what == "id" else SAME_NAME, same.devices[0].split(" (")[0], str(same))
        for same in found
    ]
