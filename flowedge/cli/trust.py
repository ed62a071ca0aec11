"""Options of the commands that speak to agents: under which identity, or under none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INSECURE_HELP = (
    "Plaintext, also over the network: anyone there can read and use it. The other side has to say it too."
)
_DIR_HELP = "Directory of this machine's identity in its cluster; the state directory if not given."


def choose_identity(cluster_dir: Path | None, insecure: bool) -> None:
    """Has this command act under an identity, which is brought up to date. Errors as Security.load."""
    import datetime  # noqa: PLC0415

    from flowedge.security import process  # noqa: PLC0415
    from flowedge.security.credentials.enrolment import refresh_credentials  # noqa: PLC0415
    from flowedge.security.settings import SecuritySettings  # noqa: PLC0415

    directory = None if cluster_dir is None else str(cluster_dir)
    settings = SecuritySettings(cluster_dir=directory, insecure=insecure)
    security = process.use(process.Security.load(settings))
    if security.store is not None:
        refresh_credentials(security.store, datetime.datetime.now(datetime.timezone.utc))


ClusterDir = Annotated[Path | None, typer.Option(help=_DIR_HELP)]
Insecure = Annotated[bool, typer.Option("--insecure", help=INSECURE_HELP)]
