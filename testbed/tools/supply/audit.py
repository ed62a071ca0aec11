"""Ask the database of known vulnerabilities about the pinned packages, by pip-audit.

    make audit

Exit status 0: all packages were looked up, and nothing is known. 1: vulnerabilities are known. 2: packages
were not looked up, because the database is not reachable or does not know them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_WAIT_S = 600.0
_SHOWN = 10


@dataclass(frozen=True)
class AuditOutcome:
    """The result of an audit: the exit status and the lines to print."""

    status: int
    lines: tuple[str, ...]


def main() -> int:
    command = [str(Path(sys.argv[1])), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--format", "json", "--requirement", str(ROOT / "constraints.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    try:
        verdict = judge(json.loads(done.stdout))
    except ValueError:
        reason = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        verdict = AuditOutcome(2, (f"nothing was audited: the database is not reachable ({reason[0]})",))
    print("\n".join(verdict.lines))
    return verdict.status


def judge(report: dict[str, Any]) -> AuditOutcome:
    """Judge pip-audit's report in JSON.

    Raises:
        ValueError: when the report has no list of packages.
    """
    packages = report.get("dependencies")
    if not packages:
        raise ValueError("the report has no packages")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    if len(skipped) == len(packages):
        return AuditOutcome(2, ("nothing was audited: the database knows none of the packages from here",))
    audited = f"{len(packages) - len(skipped)} of {len(packages)} packages were audited"
    if skipped:
        names = ", ".join(skipped[:_SHOWN]) + (", ..." if len(skipped) > _SHOWN else "")
        audited += f"; not audited: {names}"
    status = 1 if lines else 2 if skipped else 0
    return AuditOutcome(status, (*lines, audited))


if __name__ == "__main__":
    sys.exit(main())
