"""`flowedge devices`: the agents on the network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import AsJson, AskPeers, ClusterDir, Insecure, split_peers
from flowedge.cli.output import say_json, warn
from flowedge.core.errors import BadRequestError

if TYPE_CHECKING:
    from flowedge.client.survey import SurveyedAgent
    from flowedge.planning.measuring.link_rates import LinkRate


def devices(
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for devices.")] = 2.0,
    peers: AskPeers = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show devices as they come and go.")] = False,
    rate: Annotated[
        bool,
        typer.Option(
            "--rate", help="Measure the link from each idle agent to the next; takes a few seconds each."
        ),
    ] = False,
    as_json: AsJson = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the agents on the network, their resources and their roles."""
    from flowedge.cli.screens.device_table import device_rows, device_table
    from flowedge.cli.screens.tables import output_console
    from flowedge.cli.trust import choose_credentials

    choose_credentials(cluster_dir, insecure)
    if watch:
        if rate or peers is not None:
            raise BadRequestError("--watch cannot be combined with --rate or --peers")
        _watch(as_json)
        return
    agents = _find(timeout, peers)
    rows = device_rows(agents, _link_rates(agents) if rate else None)
    if as_json:
        say_json(rows)
    elif rows:
        output_console().print(device_table(rows))
    else:
        warn(
            f"No agent answered within {timeout:g} s. Start an agent with `flowedge agent`. If the network "
            "blocks multicast, name agents with --peers host:port,... `flowedge doctor` looks for the cause."
        )


def _watch(as_json: bool) -> None:
    from flowedge.agent.config_loading import load_config
    from flowedge.cli.screens import device_watch

    settings = load_config().config.discovery
    device_watch.watch(settings, settings.peers, as_json=as_json)


def _link_rates(agents: list[SurveyedAgent]) -> dict[str, LinkRate]:
    from flowedge.planning.measuring.link_rates import link_rates

    return link_rates(agents)


def _find(timeout: float, peers: str | None) -> list[SurveyedAgent]:
    from flowedge.client.survey import survey

    if peers is not None:
        return survey([], split_peers(peers))
    from flowedge.agent.config_loading import load_config
    from flowedge.discovery.discovery import discover

    settings = load_config().config.discovery
    return survey(asyncio.run(discover(timeout, settings=settings)), settings.peers)
