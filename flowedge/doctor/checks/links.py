"""Whether links are fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import Finding, FindingKind, Severity

SLOW_BITS_PER_S = 50e6  # a segment of 16 rows of a 7B model in half precision takes 20 ms
SLOW_ROUND_TRIP_S = 0.02

LINK_SLOW = FindingKind(
    "link-slow",
    Severity.WARNING,
    "a link carries less than the bound (--slow, 50 Mbit/s)",
    "Use a cable, or 5 GHz Wi-Fi near the access point; look for a switch port that negotiated 10 Mbit/s "
    "with ethtool, and for other traffic.",
)
LINK_LATENCY = FindingKind(
    "link-latency",
    Severity.WARNING,
    "a small message takes more than 20 ms there and back",
    "Turn Wi-Fi power saving off (iw dev INTERFACE set power_save off), or use a cable.",
)
LINK_UNKNOWN = FindingKind(
    "link-not-measured",
    Severity.INFO,
    "a link could not be measured",
    "Links are measured between idle agents: free them with flowedge release, or ask again later.",
)
KINDS = (LINK_SLOW, LINK_LATENCY, LINK_UNKNOWN)


@dataclass(frozen=True)
class LinkFacts:
    """One direction of a link; `problem` says why rate and round trip are None."""

    sender: str
    receiver: str
    bits_per_s: float | None = None
    round_trip_s: float | None = None
    problem: str | None = None


def judge_links(links: Sequence[LinkFacts], slow_bits_per_s: float = SLOW_BITS_PER_S) -> list[Finding]:
    """From what was measured."""
    findings = []
    for link in links:
        way = f"from {link.sender} to {link.receiver}"
        if link.problem is not None:
            findings.append(Finding(LINK_UNKNOWN, link.sender, f"{way}: {link.problem}"))
        if link.bits_per_s is not None and link.bits_per_s < slow_bits_per_s:
            findings.append(Finding(LINK_SLOW, link.sender, f"{link.bits_per_s / 1e6:.1f} Mbit/s {way}"))
        if link.round_trip_s is not None and link.round_trip_s > SLOW_ROUND_TRIP_S:
            detail = f"{1000 * link.round_trip_s:.0f} ms {way} and back"
            findings.append(Finding(LINK_LATENCY, link.sender, detail))
    return findings
