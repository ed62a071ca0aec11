"""The environments of foreign clients: each its own, outside of the checkout, kept while its pins stay."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

INSTALL_S = 300.0
HERE = Path(__file__).parent
PINS = HERE / "pins"
NPM = HERE / "npm"
LINKED = ("torch", "torchgen", "functorch")
"""Packages of PyTorch. Clients that need it take that of the tests, which is the build for this machine."""

# What pip and npm say when no registry answers; then nothing was tested, and a test is skipped.
_UNREACHABLE = (
    "NewConnectionError",
    "Max retries exceeded",
    "name resolution",
    "Connection refused",
    "ConnectTimeout",
    "ReadTimeout",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEDOUT",
    "ECONNRESET",
)
_COMPLETE = ".complete"  # a file of an environment that lacks nothing


def python_of(client: str) -> Path:
    """Return the interpreter of the environment that has the packages of pins/CLIENT.txt.

    The pins name every package, so pip resolves nothing. Packages that are published as sources alone are
    built; all others come as wheels.
    """
    pins = PINS / f"{client}.txt"

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        python = folder / "bin" / "python"
        _run([str(python), "-m", "pip", "install", "--no-deps", "--no-compile", "--requirement", str(pins)])
        if "# torch\n" in pins.read_text(encoding="utf-8"):
            _link_torch(folder)

    return _environment(client, [pins], install) / "bin" / "python"


def node_modules() -> Path:
    """Return the folder that has the packages of npm/package-lock.json in node_modules."""
    files = [NPM / "package.json", NPM / "package-lock.json"]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)])

    return _environment("npm", files, install)


def _environment(name: str, pins: Sequence[Path], install: Callable[[Path], None]) -> Path:
    """Return the environment of these pins, which `install` fills if it is not there; older ones go."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowedge-test-clients"
    cache.mkdir(parents=True, exist_ok=True)
    content = b"".join(file.read_bytes() for file in pins) + sys.version.encode()
    folder = cache / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    with _locked(cache / f"{name}.lock"):
        if not (folder / _COMPLETE).exists():
            for older in cache.glob(f"{name}-" + 16 * "?"):
                shutil.rmtree(older)
            folder.mkdir()
            install(folder)
            (folder / _COMPLETE).touch()
    return folder


def _run(command: Sequence[str]) -> None:
    """Run a step of an installation; skip the test if no registry can be reached."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[:4]} did not end within {INSTALL_S:g} s: the registry is slow or unreachable")
    if done.returncode:
        said = done.stdout + done.stderr
        if reason := next((text for text in _UNREACHABLE if text in said), ""):
            pytest.skip(f"the registry cannot be reached: {reason}")
        pytest.fail(f"{command} ended with {done.returncode}: {said[-3000:]}")


def _link_torch(folder: Path) -> None:
    (site,) = (folder / "lib").glob("python*/site-packages")
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    own = Path(found.origin).parent.parent
    for path in [*(own / name for name in LINKED), *own.glob("torch-*.dist-info")]:
        (site / path.name).symlink_to(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other runs of the tests from the same environment."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
