"""`flowedge release`: frees agents from the pipeline they are part of."""

from __future__ import annotations

from typing import Annotated

import typer

from flowedge.cli.trust import ClusterDir, Insecure, choose_identity


def release(
    agents: Annotated[str, typer.Argument(metavar="HOST:PORT,...", help="The agents to free.")],
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Have agents give up their roles and free their memory; what they are generating ends with an error."""
    from flowedge.cli.options import split_peers  # noqa: PLC0415
    from flowedge.client.assembly import release as release_roles  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    release_roles(split_peers(agents), pipeline="")
