"""Prints what `flowedge doctor` finds of this device itself: a line for each finding."""

from __future__ import annotations

from flowedge.doctor.finding import in_order
from flowedge.doctor.hardware import judge_hardware

if __name__ == "__main__":
    for finding in in_order(judge_hardware("this device")):
        kind = finding.kind
        print(f"{kind.severity.value} {kind.code}: {finding.detail}. {kind.remedy}")
