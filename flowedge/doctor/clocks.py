"""Whether the clocks of devices agree, and whether this device's certificate is valid by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowedge.doctor.finding import ERROR, WARNING, Finding

SKEW_S = 2.0
SOON = timedelta(days=3)

CLOCK_SKEW = WARNING(
    "clock-skew",
    "a device's clock differs from this one's",
    "Have systemd-timesyncd or chrony set the clock of both devices: timedatectl set-ntp true.",
)
CERTIFICATE_NOT_YET = ERROR(
    "certificate-not-yet-valid",
    "by the clock of a device, this device's certificate is not valid yet",
    "Set the clock of the device: timedatectl set-ntp true. Boards without a battery start in the past.",
)
CERTIFICATE_EXPIRED = ERROR(
    "certificate-expired",
    "by the clock of a device, this device's certificate is no longer valid",
    "Set the clock of the device if it is wrong; otherwise join again with a new token: `flowedge join "
    "--replace`.",
)
CERTIFICATE_ENDS = WARNING(
    "certificate-ends",
    "this device's certificate is about to expire, and was not renewed",
    "See that the cluster's CA runs (`flowedge cluster serve`) and can be reached; the agent's log says why "
    "the renewal failed.",
)
KINDS = (CLOCK_SKEW, CERTIFICATE_NOT_YET, CERTIFICATE_EXPIRED, CERTIFICATE_ENDS)


@dataclass(frozen=True)
class ClockFacts:
    """A device's wall clock minus ours, in seconds; the true difference is within `uncertainty` of it."""

    device: str
    offset: float
    uncertainty: float


@dataclass(frozen=True)
class Validity:
    """The period in which a certificate of ours is valid, both ends included; times have a time zone."""

    not_before: datetime
    not_after: datetime
    member: str = ""  # name and roles


def judge_clocks(clocks: Sequence[ClockFacts]) -> list[Finding]:
    return [
        Finding(
            CLOCK_SKEW,
            clock.device,
            f"{abs(clock.offset):.1f} s {'ahead of' if clock.offset > 0 else 'behind'} this device's",
        )
        for clock in clocks
        if abs(clock.offset) - clock.uncertainty > SKEW_S
    ]


def judge_certificate(
    validity: Validity, now: datetime, device: str, clocks: Sequence[ClockFacts] = ()
) -> list[Finding]:
    """Judge our certificate by our clock and by the clocks of the devices that check it."""
    findings = []
    which = f"the certificate of {validity.member}" if validity.member else "the certificate"
    for name, offset in [(device, 0.0), *((clock.device, clock.offset) for clock in clocks)]:
        shown = now + timedelta(seconds=offset)
        if shown < validity.not_before:
            detail = f"its clock says {_text(shown)}, {which} begins at {_text(validity.not_before)}"
            findings.append(Finding(CERTIFICATE_NOT_YET, name, detail))
        elif shown > validity.not_after:
            detail = f"its clock says {_text(shown)}, {which} ended at {_text(validity.not_after)}"
            findings.append(Finding(CERTIFICATE_EXPIRED, name, detail))
    if not findings and validity.not_after - now < min(SOON, (validity.not_after - validity.not_before) / 10):
        findings.append(Finding(CERTIFICATE_ENDS, device, f"{which} ends at {_text(validity.not_after)}"))
    return findings


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
