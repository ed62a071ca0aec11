"""`flowedge release`: frees agents from the pipeline that they are part of."""

from __future__ import annotations

from typing import Annotated

import typer

from flowedge.cli.options import ClusterDir, Insecure, split_peers


def release(
    agents: Annotated[str, typer.Argument(metavar="HOST:PORT,...", help="Addresses of the agents.")],
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Release agents from their pipeline and free their memory; running requests fail."""
    from flowedge.cli.trust import choose_credentials
    from flowedge.client import assembly

    choose_credentials(cluster_dir, insecure)
    assembly.release(split_peers(agents), pipeline="")
