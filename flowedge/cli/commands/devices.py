"""`flowedge devices`: the agents on the network."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from flowedge.agent.config.loading import load_config
from flowedge.cli.options import AsJson, AskPeers, split_peers
from flowedge.cli.output import say_json, warn
from flowedge.cli.screens import device_watch
from flowedge.cli.screens.device_table import device_rows, device_table
from flowedge.cli.screens.tables import output_console
from flowedge.cli.trust import ClusterDir, Insecure, choose_credentials
from flowedge.client.survey import SurveyedAgent, survey
from flowedge.core.errors import BadRequestError
from flowedge.discovery.discovery import discover
from flowedge.profiling.link_rates import link_rates


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
    choose_credentials(cluster_dir, insecure)
    if watch:
        if rate or peers is not None:
            raise BadRequestError("--watch cannot be combined with --rate or --peers")
        settings = load_config().config.discovery
        device_watch.watch(settings, settings.peers, as_json=as_json)
        return
    agents = _find(timeout, peers)
    rows = device_rows(agents, link_rates(agents) if rate else None)
    if as_json:
        say_json(rows)
    elif rows:
        output_console().print(device_table(rows))
    else:
        warn(
            f"No agent answered within {timeout:g} s. Start an agent with `flowedge agent`. If the network "
            "blocks multicast, name agents with --peers host:port,... `flowedge doctor` looks for the cause."
        )


def _find(timeout: float, peers: str | None) -> list[SurveyedAgent]:
    if peers is not None:
        return survey([], split_peers(peers))
    settings = load_config().config.discovery
    return survey(asyncio.run(discover(timeout, settings=settings)), settings.peers)
