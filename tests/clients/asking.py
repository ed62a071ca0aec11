"""Running the script of a client, which asks a gateway and checks the answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.environments import HERE
from tests.support.gateways import GatewayProcess
from tests.support.truncated import BUNDLED_MODEL

SCRIPTS = HERE / "scripts"
CLIENT_S = 420.0


def script_of(client: str) -> Path:
    return SCRIPTS / f"ask_{client.replace('-', '_')}.py"


def ask(
    gateway: GatewayProcess,
    command: Sequence[str | Path],
    folder: Path,
    more: Mapping[str, str] | None = None,
) -> str:
    """Run a client's script, which ends with 0 if all answers were right, and return what the script printed.

    Args:
        folder: its working directory and its home, so that no setting of the user is read.
        more: variables beside those that all scripts have.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CLIENT_URL": gateway.url,
        "CLIENT_MODEL": "bundled",
        "CLIENT_TOKENIZER": str(BUNDLED_MODEL),
        "HF_DATASETS_OFFLINE": "1",
        "NO_PROXY": "*",
        **(more or {}),
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
