"""`flowedge models`: which weights are cached where, and fetching, deleting and verifying them."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import AsJson, AskPeers, ClusterDir, Insecure, split_peers
from flowedge.cli.output import say, say_json, warn
from flowedge.core.errors import CheckpointError, FlowEdgeError
from flowedge.core.pipeline_config import Quantisation
from flowedge.core.plain_text import counted

if TYPE_CHECKING:
    from flowedge.weights.inventory import HeldModel
    from flowedge.weights.local_weights import LocalWeights

models = typer.Typer(
    name="models",
    help="List, fetch, delete and verify cached weights.",
    invoke_without_command=True,
    no_args_is_help=False,
    add_completion=False,
)
CacheDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Cache directory. Default: FLOWEDGE_CACHE_DIR or ~/.cache/flowedge."),
]
CacheGib = Annotated[
    float | None,
    typer.Option(min=0, metavar="GIB", help="Maximum size of the cache. Default: FLOWEDGE_CACHE_GIB or 16."),
]
NAME_HELP = "Name of a listed model, or sha256:HASH, of which 8 digits are enough."


@models.callback()
def list_models(
    context: typer.Context,
    peers: AskPeers = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for agents.")] = 2.0,
    local: Annotated[bool, typer.Option("--local", help="List this device's cache only.")] = False,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the models in the cache of this device and of the agents on the network."""
    if context.invoked_subcommand is None:
        _list(
            peers,
            timeout,
            cache_dir,
            local=local,
            as_json=as_json,
            cluster_dir=cluster_dir,
            insecure=insecure,
        )


@models.command("list")
def list_command(
    peers: AskPeers = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for agents.")] = 2.0,
    local: Annotated[bool, typer.Option("--local", help="List this device's cache only.")] = False,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the models in the cache of this device and of the agents on the network, as without a command."""
    _list(peers, timeout, cache_dir, local=local, as_json=as_json, cluster_dir=cluster_dir, insecure=insecure)


@models.command()
def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="sha256:HASH of a model that an agent has, a directory, a GGUF file, or a hub id."
        ),
    ],
    peers: Annotated[
        str | None,
        typer.Option("--from", metavar="HOST:PORT,...", help="Agents that have the model. Default: search."),
    ] = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Download the model from the hub if it is not on this device.")
    ] = False,
    quant: Annotated[
        Quantisation, typer.Option(help="Also cache the layers quantised, for stages to fetch.")
    ] = "none",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time to search for agents.")] = 2.0,
    cache_dir: CacheDir = None,
    cache_gib: CacheGib = None,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Fetch a whole model into the cache, for this device and for agents that ask for it."""
    from flowedge.cli.screens.transfers import transfer_bars
    from flowedge.cli.trust import choose_credentials
    from flowedge.weights.inventory import pull_model
    from flowedge.weights.known_models import is_reference

    choose_credentials(cluster_dir, insecure)
    local_weights = _cache(cache_dir, cache_gib)
    with transfer_bars() as show:
        if is_reference(model):
            model_id = asyncio.run(pull_model(local_weights, model, list(_agents(peers, timeout)), show))
        else:
            from flowedge.weights.importing import import_model

            model_id = import_model(local_weights, model, hub=hub, on_transfer=show)
        if quant != "none":
            from flowedge.weights.importing import quantise_model

            quantise_model(local_weights, model_id, quant, show)
    say(f"sha256:{model_id}")


@models.command()
def rm(
    model: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP)], cache_dir: CacheDir = None
) -> None:
    """Delete a model from the cache, except tensors that are in use or shared with another model."""
    from flowedge.weights.inventory import remove_model

    freed = remove_model(_cache(cache_dir), model)
    warn(f"{freed / 2**20:.1f} MiB freed")


@models.command()
def verify(
    model: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"{NAME_HELP} Default: all models.")
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Check cached weights and delete damaged files, which are fetched again when needed."""
    from flowedge.weights.inventory import verify_models

    good, damaged = verify_models(_cache(cache_dir), model)
    if damaged:
        raise CheckpointError(
            f"{damaged} of {counted(good + damaged, 'object')} were damaged and have been deleted; they are "
            "fetched again when needed, or now with flowedge models pull"
        )
    warn(f"{counted(good, 'object')}: no damage found")


def _list(
    peers: str | None,
    timeout: float,
    cache_dir: str | None,
    *,
    local: bool,
    as_json: bool,
    cluster_dir: Path | None,
    insecure: bool,
) -> None:
    from flowedge.cli.trust import choose_credentials
    from flowedge.weights.inventory import ask_all, local_models

    choose_credentials(cluster_dir, insecure)
    agents = {} if local else _agents(peers, timeout)
    held, problems = asyncio.run(ask_all(list(agents), agents))
    held = [*local_models(_cache(cache_dir)), *held]
    for problem in problems:
        warn(f"flowedge: {problem}")
    if as_json:
        say_json([dataclasses.asdict(model) for model in held])
    elif held:
        _print(held)
    else:
        warn("No models are cached on this device or on the agents that answered.")


def _cache(cache_dir: str | None, cache_gib: float | None = None) -> LocalWeights:
    """The weights of this device. The command goes on with the rights of the cache's owner."""
    from flowedge.device.disk_cache.limits import CacheLimits
    from flowedge.device.owner import become_owner
    from flowedge.weights.local_weights import LocalWeights

    become_owner(CacheLimits.configured(cache_dir, cache_gib).root)
    return LocalWeights.configured(cache_dir, cache_gib)


def _agents(peers: str | None, timeout: float) -> dict[str, str]:
    """Return the agents to ask, those of `peers` or those that are found: their names by address.

    An agent that is named by its address alone is asked for its name.
    """
    from flowedge.agent.config_loading import load_config
    from flowedge.cluster.process import current
    from flowedge.discovery.discovery import discover

    if peers is not None:
        return {address: _name_at(address) for address in split_peers(peers)}
    settings = load_config().config.discovery
    devices = asyncio.run(discover(timeout, settings=settings))
    found = {
        device.address: device.name
        for device in devices
        if not device.mismatch and current().foreign(device.name, device.cluster) is None
    }
    return {address: _name_at(address) for address in settings.peers if address not in found} | found


def _name_at(address: str) -> str:
    from flowedge.cli.pipelines.planned_pipeline import describe
    from flowedge.client.announced import errors_of_answer

    try:
        with errors_of_answer(address):
            return describe(address).name
    except FlowEdgeError:  # which the question for its models meets as well, and tells
        return address


def _print(held: list[HeldModel]) -> None:
    from flowedge.cli.screens.tables import Column, ColumnKind, print_table

    columns = (
        Column("model", ColumnKind.WHOLE),
        Column("name"),
        Column("stored in", ColumnKind.WHOLE, drop=1),
        Column("on"),
        Column("cached", ColumnKind.WHOLE, right=True),
        Column("whole model", ColumnKind.WHOLE, right=True, drop=2),
        Column("", ColumnKind.WHOLE, drop=3),
    )
    rows = []
    for model in held:
        share = "whole" if model.here_bytes >= model.total_bytes else "a part"
        cells = [f"sha256:{model.id[:12]}", model.name, model.quant, model.device]
        cells += [f"{model.here_bytes / 2**20:.1f} MiB", f"{model.total_bytes / 2**20:.1f} MiB"]
        rows.append([*cells, "its directory" if model.in_directory else share])
    print_table(columns, rows)
