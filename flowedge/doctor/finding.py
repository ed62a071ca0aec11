"""What the doctor finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How much it matters: worth knowing, may cause trouble, or does not work."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


EXIT_CODES = {Severity.INFO: 0, Severity.WARNING: 4, Severity.ERROR: 1}


@dataclass(frozen=True)
class FindingKind:
    """One thing that can be found.

    Attributes:
        code: what it is called in JSON and in the documentation.
        meaning: for the documentation, a phrase; remedy: what to do about it.
    """

    code: str
    severity: Severity
    meaning: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """One thing that was found; `device` is where, `detail` says it with names and numbers."""

    kind: FindingKind
    device: str
    detail: str

    def to_json(self) -> dict[str, str]:
        """As the command prints it."""
        return {
            "code": self.kind.code,
            "severity": self.kind.severity.value,
            "device": self.device,
            "detail": self.detail,
            "remedy": self.kind.remedy,
        }


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; otherwise as they came."""
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    return sorted(findings, key=lambda finding: rank[finding.kind.severity])


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when nothing is worse than worth knowing, else that of the worst: 4 for warnings, 1 for errors."""
    found = in_order(findings)
    return EXIT_CODES[found[0].kind.severity] if found else 0
