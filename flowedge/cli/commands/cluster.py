"""`flowedge cluster`: making a cluster, and managing its members."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import AsJson, split_peers
from flowedge.cli.orphan import ExitWithParent, stop_when_input_closes
from flowedge.cli.output import log_to_stderr, say, say_json, warn
from flowedge.cluster.certificate_role import read_roles, text_of
from flowedge.core.errors import BadRequestError
from flowedge.device.owner import become_owner
from flowedge.device.sd_notify import READY, Notifier
from flowedge.device.state_dir import authority_state
from flowedge.network.address import host_ip, join_address

if TYPE_CHECKING:
    from flowedge.cluster.authority import Authority
    from flowedge.cluster.member_ledger import IssuedCertificate

cluster = typer.Typer(
    help="Make a cluster and manage its members.", no_args_is_help=True, add_completion=False
)

Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="Directory of the CA. Default: the state directory or, for root, that of the enrolment service.",
    ),
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@cluster.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the cluster.")],
    directory: Dir = None,
    port: Annotated[
        int, typer.Option(min=1, max=65534, help="Port for joining; the next port is used for renewals.")
    ] = 7443,
    lifetime: Annotated[
        str,
        typer.Option(help="Lifetime of certificates, such as 90d. They are renewed after two thirds of it."),
    ] = "90d",
) -> None:
    """Make a cluster: a CA, and an admin's credentials for this machine. Nothing is overwritten."""
    from flowedge.cluster.authority import Authority

    state = _directory(directory)
    authority = Authority.create(
        state,
        name,
        now=_now(),
        addresses=[join_address("127.0.0.1", port)],
        port=port,
        life=_duration(lifetime),
    )
    say(f"cluster {name} ({authority.id}) is in {state}; keep a copy of {state / 'authority'} offline")
    say("next: flowedge cluster serve, and for each device: flowedge cluster token")


@cluster.command()
def serve(
    directory: Dir = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. Default: all networks.")
    ] = "0.0.0.0",
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Run the service of the CA, at which devices join, renew certificates and fetch the revocation list."""
    from flowedge.cluster.enrolment_service import serve_authority

    if exit_with_parent:
        stop_when_input_closes()
    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    authority = _open(directory)
    serve_authority(authority, host_ip(host), lambda: Notifier().notify(READY))


@cluster.command()
def token(
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLES",
            help="agent; draft-node, which may also lead pipelines; client, which may ask for answers; "
            "admin; or "
            "several roles, such as agent,client.",
        ),
    ] = "agent",
    ttl: Annotated[
        str, typer.Option(metavar="TIME", help="How long the token is valid, such as 90s, 15m or 1h.")
    ] = "15m",
    name: Annotated[
        str,
        typer.Option(
            help="Only a member of this name may use the token, and replaces an existing member of that name."
        ),
    ] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Address at which devices reach this machine; repeatable. Default: its addresses.",
        ),
    ] = None,
    directory: Dir = None,
) -> None:
    """Print a token with which one member can join, once; standard error says how."""
    from flowedge.cluster.enrolment_service import service_addresses

    roles = read_roles(role)
    authority = _open(directory)
    made = authority.new_token(
        roles,
        _duration(ttl),
        service_addresses(address or [], authority.port),
        now=_now(),
        name=name,
    )
    say(made.encode())
    present = authority.present(name, _now()) if name else None
    if present is not None:
        warn(
            f"{name} ({text_of(present.roles)}) is a member. Whoever joins with this token replaces it, and "
            "its present certificate is revoked. On its machine, run `flowedge join --replace`."
        )
        return
    warn(
        "On the device, run `flowedge join` and paste the token there. Or have it read the token from here: "
        "flowedge cluster token | ssh DEVICE flowedge join -"
    )


@cluster.command("list")
def list_members(
    directory: Dir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list expired and renewed certificates.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the members: name, roles, serial number of the certificate, expiry, whether it is revoked."""
    from flowedge.cli.screens.tables import Column, ColumnKind, print_table

    certificates = _open(directory).certificates()
    rows = [_row(issued) for issued in (certificates if everything else _latest(certificates))]
    if as_json:
        say_json(rows)
        return
    serial = Column("serial", ColumnKind.WHOLE, drop=1)
    expires, state = Column("expires", ColumnKind.WHOLE), Column("state", ColumnKind.PROSE)
    print_table(("name", "roles", serial, expires, state), [list(row.values()) for row in rows])


@cluster.command()
def revoke(
    target: Annotated[
        str | None, typer.Argument(metavar="NAME|SERIAL", help="A member, or a certificate.")
    ] = None,
    serial: Annotated[
        str | None,
        typer.Option(
            metavar="HEX",
            help="Serial number of a certificate, also of a member that the CA does not know because it was "
            "restored from an older copy.",
        ),
    ] = None,
    directory: Dir = None,
) -> None:
    """Revoke a member's access; agents learn of it within about a minute."""
    from flowedge.cluster.restoring import revoke_unknown

    if (target is None) == (serial is None):
        raise BadRequestError("name a member, or a certificate with --serial, and not both")
    authority, named = _open(directory), target or ""
    if serial is not None:
        number = _serial(serial)
        named = f"{number:x}"
        if all(issued.serial != number for issued in authority.certificates()):
            revoke_unknown(authority, number, _now())
            say(f"revoked serial {named}, of a member that this CA does not know")
            return
    for revoked in authority.revoke(named, _now()):
        say(f"revoked {revoked.name} ({text_of(revoked.roles)}), serial {revoked.serial:x}")


@cluster.command()
def restore(
    copy: Annotated[
        Path | None,
        typer.Argument(
            metavar="COPY",
            help="Copy of the CA's folder `authority`. Default: the one that lies in its place already.",
        ),
    ] = None,
    directory: Dir = None,
    peers: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="Also ask these agents what the copy lacks.")
    ] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for agents.")] = 2.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before anything is changed.")] = False,
) -> None:
    """Restore the CA from a copy, with the members and revocations that agents know and the copy lacks."""
    from flowedge.cli.screens.restore_screen import restore_from

    restore_from(copy, _directory(directory), split_peers(peers) if peers else (), timeout, yes=yes)


def _open(directory: Path | None) -> Authority:
    from flowedge.cluster.authority import Authority

    return Authority.open(_directory(directory))


def _directory(named: Path | None) -> Path:
    """The directory of the CA, with whose owner's rights the command goes on."""
    directory = named or authority_state()
    become_owner(directory)
    return directory


def _latest(certificates: Sequence[IssuedCertificate]) -> list[IssuedCertificate]:
    """Return the latest certificate of each name, sorted by name."""
    by_name = {
        issued.name or f"{issued.serial:x}": issued
        for issued in sorted(certificates, key=lambda issued: issued.issued)
    }
    return [by_name[name] for name in sorted(by_name)]


def _row(issued: IssuedCertificate) -> dict[str, str]:
    state = "valid" if issued.expires > _now() else "expired"
    if issued.revoked is not None:
        state = f"revoked {issued.revoked:%Y-%m-%d %H:%M}"
    return {
        "name": issued.name or "(unknown)",
        "roles": text_of(issued.roles),
        "serial": f"{issued.serial:x}",
        "expires": f"{issued.expires:%Y-%m-%d %H:%M}",
        "state": state,
    }


def _serial(text: str) -> int:
    digits = text.replace(":", "").removeprefix("0x")
    if not re.fullmatch("[0-9a-fA-F]{1,40}", digits) or not int(digits, 16):
        raise BadRequestError(f"{text!r} is no serial number; give its hexadecimal digits")
    return int(digits, 16)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _duration(text: str) -> datetime.timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text)
    if match is None:
        raise BadRequestError(f"{text!r} is not a duration; write it as 90s, 15m, 12h or 90d")
    return datetime.timedelta(seconds=int(match[1]) * _UNITS[match[2]])
