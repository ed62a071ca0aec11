"""What `flowedge cluster restore` shows and asks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from flowedge.agent.config_loading import load_config
from flowedge.cli.output import say, warn
from flowedge.cluster.restoring import Restoration
from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.discovery.discovery import discover


def restore_from(copy: Path | None, state: Path, peers: Sequence[str], search_s: float, *, yes: bool) -> None:
    """Restore the CA in a state directory from a copy, after showing what the copy lacks.

    peers: addresses of agents to ask beside those that are found in `search_s` seconds; yes: do not ask.

    Raises:
        BadRequestError: when nobody can be asked whether to go on, or the answer is no.
    """
    restoration = Restoration.of(copy, state)
    try:
        _show(restoration, [*peers, *_found(restoration, search_s)])
        if not yes:
            _confirm(state)
        before = restoration.finish()
    finally:
        restoration.abandon()
    say(f"the CA of cluster {restoration.authority.name} is restored in {state}")
    if before is not None:
        say(f"the files that were there are in {before}")
    say("next: flowedge cluster serve, if it does not run")


def _found(restoration: Restoration, search_s: float) -> list[str]:
    """Return the addresses at which agents of the cluster announce themselves."""
    settings = load_config().config.discovery
    try:
        devices = asyncio.run(discover(search_s, settings=settings))
    except DeviceError as error:
        warn(f"agents cannot be searched for: {error}; name them with --peers")
        devices = []
    own = [device.address for device in devices if device.cluster == restoration.authority.id]
    return [*own, *settings.peers]


def _show(restoration: Restoration, addresses: Sequence[str]) -> None:
    authority = restoration.authority
    say(f"the copy is of cluster {authority.name} ({authority.id})")
    restoration.ask(list(dict.fromkeys(addresses)))
    say(f"agents that answered: {', '.join(sorted(restoration.answered)) or 'none'}")
    for problem in restoration.unanswered.values():
        warn(f"no answer: {problem}")
    members, serials = restoration.lacking()
    for holder in members:
        say(f"the copy lacks member {holder.member}, serial {holder.serial:x}: it is added")
    for serial in serials:
        say(f"the copy lacks a revocation, of serial {serial:x}: it is added")
    if not members and not serials:
        say("the copy lacks nothing that anyone asked knows")
    say(
        "what nobody asked knows stays unknown: members without an agent that joined after the copy, which "
        "have to join again, and revocations that no agent has received. `flowedge cluster revoke --serial` "
        "revokes a certificate that the CA does not know. Join tokens made before now are void."
    )


def _confirm(state: Path) -> None:
    if not sys.stdin.isatty():
        raise BadRequestError("nothing was changed; give --yes to restore the CA without being asked")
    if not typer.confirm(f"Restore the CA in {state}?", err=True):
        raise BadRequestError("nothing was changed")
