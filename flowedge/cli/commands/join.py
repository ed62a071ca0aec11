"""`flowedge join`: makes this device a member of a cluster."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from flowedge.security.credentials import enrolment
from flowedge.security.credentials.join_token import JoinToken
from flowedge.system.owner import become_owner
from flowedge.system.state_dir import state_dir


def join(
    token: Annotated[
        str, typer.Argument(help="The token that `flowedge cluster token` printed; - reads it from stdin.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of this device in the cluster; the host's name if not given.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="For the credentials; the state directory if not given.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace existing credentials.")] = False,
) -> None:
    """Make this device a member of a cluster; its key is made here and stays here. Restart its agent."""
    parsed = JoinToken.decode(sys.stdin.read() if token == "-" else token)
    state = directory or state_dir()
    become_owner(state)
    store = enrolment.join(parsed, name or "", platform.node(), state, replace=replace)
    holder, joined = store.credentials.holder, store.credentials.cluster
    print(
        f"{holder.member} is a member of cluster {joined.name} ({holder.member.cluster}) until "
        f"{holder.not_after:%Y-%m-%d}, renewed before that; its credentials are in {state}"
    )
