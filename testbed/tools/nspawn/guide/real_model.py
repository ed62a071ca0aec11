"""A model in the place of the hub's, which the proof cannot reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REAL_MODEL = "/srv/model"  # on the first board only
# The heads of SmolLM2 135M and its width, with fewer layers.
_SHAPE = ("--hidden", "576", "--intermediate", "1536", "--heads", "9", "--kv-heads", "3", "--layers", "6")


def write_real_model(root: Path) -> None:
    """Write the model to a host, whose files lie below `root`."""
    directory = root / REAL_MODEL.removeprefix("/")
    command = [sys.executable, "-m", "testbed.tools.random_model", str(directory), *_SHAPE]
    subprocess.run(command, check=True)
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)  # the services' user reads them
