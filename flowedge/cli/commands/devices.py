"""`flowedge devices`: what is on the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.trust import ClusterDir, Insecure, choose_identity

if TYPE_CHECKING:
    from flowedge.client.survey import Surveyed


def devices(
    timeout: Annotated[float, typer.Option(help="Seconds to look for devices.")] = 2.0,
    peers: Annotated[
        str | None, typer.Option(help="Ask these agents (host:port,...) instead of looking for some.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and show devices as they come and go.")
    ] = False,
    rate: Annotated[
        bool,
        typer.Option("--rate", help="Measure the link from each idle agent to the next; takes seconds each."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the agents on the network, what they have and what they do."""
    import json  # noqa: PLC0415

    from flowedge.cli.screens.device_rows import device_rows  # noqa: PLC0415
    from flowedge.cli.screens.device_table import console, device_table  # noqa: PLC0415
    from flowedge.core.errors import BadRequestError  # noqa: PLC0415
    from flowedge.profiling.link_rates import link_rates  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    if watch:
        if rate or peers is not None:
            raise BadRequestError("--watch goes with neither --rate nor --peers")
        _watch(as_json)
        return
    agents = _find(timeout, peers)
    rows = device_rows(agents, link_rates(agents) if rate else None)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        console().print(device_table(rows))
    else:
        typer.echo(
            f"No agent answered within {timeout:g} s. Start one with `flowedge agent`; where multicast "
            "does not pass, name the agents with --peers host:port,... `flowedge doctor` looks for reasons.",
            err=True,
        )


def _find(timeout: float, peers: str | None) -> list[Surveyed]:
    import asyncio  # noqa: PLC0415

    from flowedge.agent.config.loading import load_config  # noqa: PLC0415
    from flowedge.cli.options import split_peers  # noqa: PLC0415
    from flowedge.client.survey import survey  # noqa: PLC0415
    from flowedge.discovery.discovery import discover  # noqa: PLC0415

    if peers is not None:
        return survey([], split_peers(peers))
    settings = load_config().config.discovery
    return survey(asyncio.run(discover(timeout, settings=settings)), settings.peers)


def _watch(as_json: bool) -> None:
    from flowedge.agent.config.loading import load_config  # noqa: PLC0415
    from flowedge.cli.screens.device_watch import watch  # noqa: PLC0415

    settings = load_config().config.discovery
    watch(settings, settings.peers, as_json=as_json)
