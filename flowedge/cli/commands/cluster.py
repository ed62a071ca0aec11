"""`flowedge cluster`: making a cluster, and saying who belongs to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import datetime

    from flowedge.security.credentials.certificate_role import CertificateRole

cluster = typer.Typer(help="Make a cluster and say who belongs to it.", no_args_is_help=True)

Dir = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the CA; the state directory if not given.")
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@cluster.command()
def init(
    name: Annotated[str, typer.Argument(help="What to call the cluster.")],
    directory: Dir = None,
    port: Annotated[
        int, typer.Option(min=1, max=65534, help="Port that devices join at; the next is for renewals.")
    ] = 7443,
    lifetime: Annotated[
        str, typer.Option(help="Of a device's certificate, such as 90d; renewed after two thirds of it.")
    ] = "90d",
) -> None:
    """Make a cluster: a CA, and an admin's identity for this machine. Nothing is overwritten."""
    import datetime  # noqa: PLC0415

    from flowedge.net.address import join_address  # noqa: PLC0415
    from flowedge.security.authority.authority import Authority  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    state = directory or state_dir()
    authority = Authority.create(
        state,
        name,
        now=datetime.datetime.now(datetime.timezone.utc),
        addresses=[join_address("127.0.0.1", port)],
        port=port,
        life=_duration(lifetime),
    )
    print(f"cluster {name} ({authority.id}) is in {state}; keep a copy of {state / 'authority'} offline")
    print("next: flowedge cluster serve, and for each device: flowedge cluster token")


@cluster.command()
def serve(
    directory: Dir = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; every network of this machine unless told otherwise.")
    ] = "0.0.0.0",
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Run the service that devices join, renew and fetch the revocation list at, on the machine of the CA."""
    import logging  # noqa: PLC0415

    from flowedge.net.address import host_ip  # noqa: PLC0415
    from flowedge.security.authority.authority import Authority  # noqa: PLC0415
    from flowedge.security.authority.enrolment_service import serve_authority  # noqa: PLC0415
    from flowedge.system.sd_notify import READY, Notifier  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    if exit_with_parent:
        from flowedge.cli.orphan import stop_when_input_closes  # noqa: PLC0415

        stop_when_input_closes()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    authority = Authority.open(directory or state_dir())
    serve_authority(authority, host_ip(host), lambda: Notifier().tell(READY))


@cluster.command()
def token(
    role: Annotated[
        str, typer.Option(help="agent; draft-node, which may lead pipelines as well; client; admin.")
    ] = "agent",
    ttl: Annotated[str, typer.Option(help="How long it is good for: 90s, 15m, 1h.")] = "15m",
    name: Annotated[str, typer.Option(help="For a member of this name alone.")] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(
            help="HOST[:PORT] at which devices reach this machine, may be repeated; its own addresses if "
            "not given."
        ),
    ] = None,
    directory: Dir = None,
) -> None:
    """Print a token with which one device can join, once."""
    import datetime  # noqa: PLC0415

    from flowedge.security.authority.authority import Authority  # noqa: PLC0415
    from flowedge.security.authority.enrolment_service import service_addresses  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    authority = Authority.open(directory or state_dir())
    made = authority.new_token(
        _role(role),
        _duration(ttl),
        service_addresses(address or [], authority.port),
        now=datetime.datetime.now(datetime.timezone.utc),
        name=name,
    )
    print(made.encode())


@cluster.command("list")
def list_members(
    directory: Dir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Certificates that have expired or been renewed as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the members: name, role, serial number of the certificate, expiry, whether it is revoked."""
    from flowedge.cli.screens.members_screen import show_members  # noqa: PLC0415
    from flowedge.security.authority.authority import Authority  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    authority = Authority.open(directory or state_dir())
    show_members(authority.certificates(), everything=everything, as_json=as_json)


@cluster.command()
def revoke(
    target: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="Of the member or the certificate.")],
    directory: Dir = None,
) -> None:
    """Shut a member out: agents learn of it when they next fetch the list, within a minute or so."""
    import datetime  # noqa: PLC0415

    from flowedge.security.authority.authority import Authority  # noqa: PLC0415
    from flowedge.system.state_dir import state_dir  # noqa: PLC0415

    authority = Authority.open(directory or state_dir())
    for revoked in authority.revoke(target, datetime.datetime.now(datetime.timezone.utc)):
        print(f"revoked {revoked.name} ({revoked.role.value}), serial {revoked.serial:x}")


def _duration(text: str) -> datetime.timedelta:
    import datetime  # noqa: PLC0415

    from flowedge.core.errors import BadRequestError  # noqa: PLC0415

    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text)
    if match is None:
        raise BadRequestError(f"{text!r} is no duration; write it as 90s, 15m, 12h or 90d")
    return datetime.timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def _role(text: str) -> CertificateRole:
    from flowedge.core.errors import BadRequestError  # noqa: PLC0415
    from flowedge.security.authority.authority import JOINING  # noqa: PLC0415

    for role in JOINING:
        if role.value == text:
            return role
    raise BadRequestError(f"{text!r} is no role; the roles are {', '.join(role.value for role in JOINING)}")
