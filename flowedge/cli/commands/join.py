"""`flowedge join`: makes this device a member of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def join(
    token: Annotated[
        str, typer.Argument(help="What `flowedge cluster token` printed; - reads it from stdin.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Of this device in the cluster; the host's name if not given.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory for the identity; the state directory if not given."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give up the identity that is there.")] = False,
) -> None:
    """Make this device a member of a cluster: its key is made here and stays here. Restart its agent then."""
    import platform  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from flowedge.security.credentials.enrolment import join as join_cluster  # noqa: PLC0415
    from flowedge.security.credentials.join_token import JoinToken  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    parsed = JoinToken.decode(sys.stdin.read() if token == "-" else token)
    state = directory or state_dir()
    store = join_cluster(parsed, name or "", platform.node(), state, replace=replace)
    holder, cluster_info = store.credentials.holder, store.credentials.cluster
    print(
        f"{holder.member} is a member of cluster {cluster_info.name} ({holder.member.cluster}) until "
        f"{holder.not_after:%Y-%m-%d}, renewed before that; its identity is in {state}"
    )
