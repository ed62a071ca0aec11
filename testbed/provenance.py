"""Which code and which versions gave a result."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flowedge
from flowedge.version import VERSION

ROOT = Path(flowedge.__file__).parents[1]
# Of these a run's figures depend; not of how they are shown.
CODE = (
    "flowedge/*.py",
    "flowedge/strategies/*.py",
    "flowedge/drafting/*.py",
    "flowedge/models/*.py",
    "flowedge/runtime/*.py",
    "testbed/costs.py",
    "testbed/interpolation.py",
    "testbed/measured_costs.py",
    "testbed/clocks.py",
    "testbed/record.py",
    "testbed/trace.py",
    "testbed/replay/*.py",
    "testbed/live/*.py",
)


def code_digest() -> str:
    """A digest of the source that runs depend on; finished runs of other code are not used again."""
    digest = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions that results may depend on."""
    packages = ("torch", "transformers", "numpy")
    return {
        "flowedge": VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def git_revision() -> dict[str, Any] | None:
    """The revision the code is at, and whether it was changed since; None outside a repository."""
    revision = _git("rev-parse", "HEAD")
    if revision is None:
        return None
    return {"revision": revision, "changed": bool(_git("status", "--porcelain", "--", "flowedge", "testbed"))}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
