"""The code and the versions that gave a result."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flowedge
import flowedge_testbed
from flowedge.version import VERSION

# The packages that a run's figures depend on, but not those that only show them.
PACKAGES = {
    "flowedge": ("core", "drafting", "engine", "models", "planning", "protocol", "strategies"),
    "flowedge_testbed": ("emulation", "live", "replay", "true_paths"),
}
MODULES = ("run_backends.py", "record.py", "trace.py")  # of the testbed, likewise
ROOT = Path(flowedge.__file__).parents[1]
TESTBED = Path(flowedge_testbed.__file__).parent


def code_digest() -> str:
    """Return a digest of the source that runs depend on; finished runs of other code are not used again."""
    roots = {"flowedge": Path(flowedge.__file__).parent, "flowedge_testbed": TESTBED}
    folders = [roots[root] / name for root, names in PACKAGES.items() for name in names]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted([*sources, *(TESTBED / name for name in MODULES)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    packages = ("torch", "transformers", "numpy")
    return {
        "flowedge": VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def git_revision() -> dict[str, Any] | None:
    """Return the revision of the code, and whether it was changed since; None outside a repository."""
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
