"""A finding: what keeps devices from working together, where it was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial


class Severity(str, Enum):
    """How much a finding matters: worth knowing, may cause trouble, or something does not work."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


EXIT_CODES = {Severity.INFO: 0, Severity.WARNING: 4, Severity.ERROR: 1}


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding.

    Attributes:
        code: its name in JSON and in the documentation.
        meaning: a phrase for the documentation.
        remedy: what to do about it, in sentences.
    """

    severity: Severity
    code: str
    meaning: str
    remedy: str


INFO = partial(FindingKind, Severity.INFO)
WARNING = partial(FindingKind, Severity.WARNING)
ERROR = partial(FindingKind, Severity.ERROR)


@dataclass(frozen=True)
class Finding:
    """A finding on a device; `detail` has the names and numbers."""

    kind: FindingKind
    device: str
    detail: str

    def to_json(self) -> dict[str, str]:
        """Return the object that `flowedge doctor --json` prints."""
        return {
            "code": self.kind.code,
            "severity": self.kind.severity.value,
            "device": self.device,
            "detail": self.detail,
            "remedy": self.kind.remedy,
        }


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, the worst first; findings of one severity keep their order."""
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
    return sorted(findings, key=lambda finding: rank[finding.kind.severity])


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of the worst finding: 1 for an error, 4 for a warning, else 0."""
    found = in_order(findings)
    return EXIT_CODES[found[0].kind.severity] if found else 0
