"""Write the hashes of the wheels that `make setup` installs on x86-64 Linux with the pinned Python.

    python -m testbed.tools.supply.lock

pip chooses the wheels by constraints.txt for the interpreter and the machine that this runs on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "constraints-cp311-x86_64.txt"
_HEAD = "# Wheels for CPython 3.11 on x86-64 Linux, written by python -m testbed.tools.supply.lock\n"


def main() -> None:
    LOCK.write_text(_HEAD + "".join(f"{line}\n" for line in locked(_report())), encoding="utf-8")


def _report() -> dict[str, Any]:
    """pip's report of what it would install, the build backend included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        dry = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        wanted = ["--constraint", str(CONSTRAINTS), f"{ROOT}[dev]", f"{ROOT}/testbed", "setuptools"]
        subprocess.run([*dry, "--report", str(path), *wanted], check=True)
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return report


def locked(report: dict[str, Any]) -> list[str]:
    """The lines of the file, sorted: in each a name, a version and the SHA-256 of a wheel.

    Raises:
        ValueError: when pip would build a package, whose code then runs before any hash is checked.
    """
    lines = []
    for item in report["install"]:
        source, metadata = item["download_info"], item["metadata"]
        if "dir_info" in source:  # FlowEdge itself
            continue
        if not source["url"].endswith(".whl"):
            raise ValueError(f"{metadata['name']} {metadata['version']} has no wheel for this machine")
        digest = source["archive_info"]["hashes"]["sha256"]
        lines.append(f"{metadata['name']}=={metadata['version']} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


if __name__ == "__main__":
    main()
