"""`flowedge join`: makes this device a member of a cluster."""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.output import say, warn
from flowedge.core.errors import BadRequestError
from flowedge.device.owner import become_owner
from flowedge.device.state_dir import joining_state

_INPUT = "-"  # in place of the token: it is read from standard input
_MOST_BYTES = 1 << 16  # of a token


def join(
    token: Annotated[
        str | None,
        typer.Argument(
            help="Omit it, or give -, to read the token from standard input. On the command line, "
            "every user of "
            "this device can see it in the list of processes for a moment."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the token from this file.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name in the cluster. Default: the name in the token; otherwise the host name for a "
            "device, and "
            "USER-HOST for a client or admin."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Directory for the credentials. Default: the state directory or, for root, that of the "
            "agent's service.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the identity of the same kind, device or person.")
    ] = False,
) -> None:
    """Make this device, or its user, a member of a cluster. The key is created here and never leaves it.

    The token says which of the two. Restart the device's agent afterwards.
    """
    from flowedge.cluster import enrolment
    from flowedge.cluster.identities import IdentityKind, kind_of
    from flowedge.cluster.join_token import JoinToken

    parsed = JoinToken.decode(_read_token(token, token_file))
    state = directory or joining_state()
    become_owner(state)
    kind = kind_of(parsed.roles)
    store = enrolment.join(
        parsed, name or "", _default_name(person=kind is IdentityKind.PERSON), state, replace=replace
    )
    holder, joined = store.credentials.holder, store.credentials.cluster
    say(
        f"{holder.member} is a member of cluster {joined.name} ({holder.member.cluster}) until "
        f"{holder.not_after:%Y-%m-%d}, renewed before that; its credentials are in {store.folder}"
    )
    if kind is IdentityKind.DEVICE:
        say("next: restart this device's agent")


def _default_name(*, person: bool) -> str:
    """The host's name for a device, USER-HOST for a person; letters that no name may have become hyphens."""
    from flowedge.cluster.member import MAX_NAME

    text = platform.node()
    if person:
        with contextlib.suppress(KeyError, OSError):  # a user id without a name, as in containers
            text = f"{getpass.getuser()}-{text}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:MAX_NAME]


def _read_token(given: str | None, file: Path | None) -> str:
    """Return the text of the token, from where the command line says.

    Raises:
        BadRequestError: when it is given twice, or the file cannot be read.
    """
    if file is not None:
        if given is not None:
            raise BadRequestError("give the token on standard input or with --token-file, not both")
        try:
            with file.open(encoding="ascii", errors="replace") as opened:
                return opened.read(_MOST_BYTES)
        except OSError as error:
            raise BadRequestError(f"--token-file {file} cannot be read: {error.strerror}") from error
    if given not in (None, _INPUT):
        warn(
            "flowedge: the token was in the list of processes, where every user of this device can read it "
            "before it is used; give it on standard input (flowedge join) or with --token-file"
        )
        return given
    if sys.stdin.isatty():
        return getpass.getpass("the token of `flowedge cluster token`: ", stream=sys.stderr)
    return sys.stdin.read(_MOST_BYTES)
