"""`flowedge devices` and `flowedge upgrade`: the agents on the network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import AsJson, AskPeers, ClusterDir, Insecure, split_names, split_peers
from flowedge.cli.output import say, say_json, warn
from flowedge.core.errors import BadRequestError, DeviceError

if TYPE_CHECKING:
    from flowedge.client import Device
    from flowedge.client.survey import SurveyedAgent
    from flowedge.planning.measuring.link_rates import LinkRate

_SEARCH_S = 3.0


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


def upgrade(
    command: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="Shell command that installs and restarts one agent, with {host}, {name} or {address} in "
            "it, such as: ssh {host} 'pip install -U flowedge && sudo systemctl restart flowedge-agent'.",
        ),
    ] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Show the order, and start nothing again.")] = False,
    to: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="Version to have: agents with it are left out, others are checked for it."
        ),
    ] = "",
    devices: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Names of the devices. Default: all.")
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Do not wait for the pipeline between two devices; for versions that do not understand each "
            "other. Running answers end.",
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for one device to be back, and for the pipeline.")
    ] = 120.0,
    peers: AskPeers = None,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Start the agents of the network again with another version, one by one, while requests run.

    Idle agents come first, then stages, a standby, and the draft node. Each has to answer again, and the
    pipeline to be whole, before the next one is started again. Answers go on.
    """
    from flowedge.cli.pipelines.upgrade_plan import restarts
    from flowedge.cli.pipelines.upgrading import Upgrade
    from flowedge.cli.trust import choose_credentials

    if not plan and not command:
        raise BadRequestError("give --run COMMAND, which starts one agent again, or --plan to see the order")
    choose_credentials(cluster_dir, insecure)
    found: dict[str, Device] = {}
    for agent in _find(_SEARCH_S, peers):
        if agent.answer is None:
            raise DeviceError(agent.name, f"{agent.problem}; start it, or give --peers without it")
        found[agent.address] = agent.answer.device
    if not found:
        raise BadRequestError("no agent answers; name agents with --peers host:port,...")
    steps = restarts(found, [] if devices is None else split_names(devices), to)
    for number, step in enumerate(steps, start=1):
        say(f"{number}. {step.name} at {step.address}: {step.duty}, version {step.version}")
    if not steps:
        say(f"all {len(found)} agents have version {to}")
    elif not plan:
        Upgrade(found, command, say, to, wait, together).run(steps)
        say("The upgrade is done.")


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
