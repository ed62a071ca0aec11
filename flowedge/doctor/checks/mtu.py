"""Whether packets of full size pass between two devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import Finding, FindingKind, Severity

MTU_DIFFERS = FindingKind(
    "mtu-differs",
    Severity.WARNING,
    "two devices of a network have interfaces of different MTU",
    "Set the same MTU on every interface of the network: ip link set dev INTERFACE mtu 1500.",
)
MTU_PATH = FindingKind(
    "mtu-path",
    Severity.WARNING,
    "packets as large as the interface sends do not arrive",
    "Set the interface's MTU to what passes, or correct the switch, tunnel or bridge between the two.",
)
KINDS = (MTU_DIFFERS, MTU_PATH)
COMMON = (9000, 4352, 1500, 1492, 1480, 1450, 1420, 1400, 1350, 1280, 1000, 576)


@dataclass(frozen=True)
class MtuFacts:
    """Sizes are bytes of an IP packet.

    Attributes:
        own: of our interface to the device; agreed: the largest that TCP agreed on with it, None if unknown.
        passes: the largest of those tried that arrived; None when no answer says.
    """

    device: str
    own: int
    agreed: int | None
    passes: int | None


def judge_mtu(mtus: Sequence[MtuFacts]) -> list[Finding]:
    """From what passes to each device."""
    findings = []
    for mtu in mtus:
        if mtu.agreed is not None and mtu.agreed < mtu.own:
            detail = f"the MTU is {mtu.agreed} there, or on the way, and {mtu.own} here"
            findings.append(Finding(MTU_DIFFERS, mtu.device, detail))
        if mtu.passes is not None and mtu.passes < mtu.own:
            detail = f"packets of {mtu.own} bytes are lost on the way there; {mtu.passes} bytes pass"
            findings.append(Finding(MTU_PATH, mtu.device, detail))
    return findings


def sizes_below(own: int) -> list[int]:
    """Sizes to try, the largest first, beginning with the interface's own."""
    return [own, *(size for size in COMMON if size < own)]
