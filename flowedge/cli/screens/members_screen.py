"""The table of `flowedge cluster list`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flowedge.security.authority.member_ledger import IssuedCertificate


def show_members(certificates: Sequence[IssuedCertificate], *, everything: bool, as_json: bool) -> None:
    """Prints the latest certificate of each member, or all certificates."""
    shown = list(certificates) if everything else latest(certificates)
    if as_json:
        print(json.dumps([_row(issued) for issued in shown], indent=2))
        return
    table = Table(box=None, header_style="bold")
    for column in ("name", "role", "serial", "expires", "state"):
        table.add_column(column, overflow="fold")
    for issued in shown:
        row = _row(issued)
        table.add_row(*(str(row[key]) for key in ("name", "role", "serial", "expires", "state")))
    Console(width=None if Console().is_terminal else 120).print(table)


def latest(certificates: Sequence[IssuedCertificate]) -> list[IssuedCertificate]:
    """Of each name the certificate that was issued last, sorted by name."""
    by_name = {issued.name: issued for issued in sorted(certificates, key=lambda issued: issued.issued)}
    return [by_name[name] for name in sorted(by_name)]


def _row(issued: IssuedCertificate) -> dict[str, str]:
    now = datetime.datetime.now(datetime.timezone.utc)
    state = "valid" if issued.expires > now else "expired"
    if issued.revoked is not None:
        state = f"revoked {issued.revoked:%Y-%m-%d %H:%M}"
    return {
        "name": issued.name,
        "role": issued.role.value,
        "serial": f"{issued.serial:x}",
        "expires": f"{issued.expires:%Y-%m-%d %H:%M}",
        "state": state,
    }
