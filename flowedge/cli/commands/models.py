"""`flowedge models`: what weights are cached where, and bringing, dropping and checking them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flowedge.cli.options import Quant
from flowedge.cli.trust import ClusterDir, Insecure, choose_identity

if TYPE_CHECKING:
    from flowedge.weights.fetch.progress import FetchProgress
    from flowedge.weights.inventory import HeldModel

_PIPED_WIDTH = 160  # columns

models = typer.Typer(
    name="models",
    help="List what weights are cached where; bring, drop and check them.",
    invoke_without_command=True,
    no_args_is_help=False,
)
CacheDir = Annotated[
    str | None, typer.Option(help="Directory of the cache; FLOWEDGE_CACHE_DIR or ~/.cache/flowedge.")
]
CacheGib = Annotated[
    float | None, typer.Option(min=0, help="GiB that all of it may take; FLOWEDGE_CACHE_GIB or 16.")
]
Model = Annotated[str, typer.Argument(help="sha256:HASH, of which 8 digits are enough when it is listed.")]


@models.callback()
def list_models(
    context: typer.Context,
    peers: Annotated[
        str | None, typer.Option(help="Ask these agents (host:port,...) instead of looking for some.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to look for agents.")] = 2.0,
    local: Annotated[bool, typer.Option("--local", help="This device's own cache alone.")] = False,
    cache_dir: CacheDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """List the models in the cache of this device and of the agents on the network."""
    if context.invoked_subcommand is not None:
        return
    import asyncio  # noqa: PLC0415
    import dataclasses  # noqa: PLC0415
    import json  # noqa: PLC0415

    from flowedge.weights.inventory import ask_all, own_models  # noqa: PLC0415
    from flowedge.weights.local_weights import LocalWeights  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    addresses = [] if local else _agents(peers, timeout)
    held, problems = asyncio.run(ask_all(addresses))
    held = [*own_models(LocalWeights.configured(cache_dir, None)), *held]
    for problem in problems:
        typer.echo(f"flowedge: {problem}", err=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(model) for model in held], indent=2))
    elif held:
        _print(held)
    else:
        typer.echo("No models are cached here or on the agents that answered.", err=True)


@models.command()
def pull(
    model: Annotated[
        str, typer.Argument(help="sha256:HASH of a model that an agent has, a directory, or a hub id.")
    ],
    peers: Annotated[
        str | None,
        typer.Option("--from", help="Agents that have it (host:port,...); those found on the network."),
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Download a hub id that is not on this device.")] = False,
    quant: Annotated[
        Quant, typer.Option(help="Quantise the layers here as well, for stages to fetch them so.")
    ] = Quant.NONE,
    timeout: Annotated[float, typer.Option(help="Seconds to look for agents.")] = 2.0,
    cache_dir: CacheDir = None,
    cache_gib: CacheGib = None,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Bring all of a model into the cache, for this device and to give to others."""
    import asyncio  # noqa: PLC0415

    from flowedge.cli.screens.transfers import transfer_bars  # noqa: PLC0415
    from flowedge.client.transfer import Transfer  # noqa: PLC0415
    from flowedge.weights.known_models import is_reference  # noqa: PLC0415
    from flowedge.weights.local_weights import LocalWeights  # noqa: PLC0415
    from flowedge.weights.pulling import pull_model  # noqa: PLC0415

    choose_identity(cluster_dir, insecure)
    local_weights = LocalWeights.configured(cache_dir, cache_gib)
    with transfer_bars() as show_transfer:

        def show(name: str, progress: FetchProgress) -> None:
            show_transfer(name, Transfer(progress.done, progress.total, progress.rate, progress.left_s))

        if is_reference(model):
            model_id = asyncio.run(pull_model(local_weights, model, _agents(peers, timeout), show))
        else:
            from flowedge.weights.importing import import_model  # noqa: PLC0415 (imports torch)

            model_id = import_model(local_weights, model, hub=hub, on_transfer=show)
        if quant != Quant.NONE:
            from flowedge.weights.importing import quantise_model  # noqa: PLC0415 (imports torch)

            quantise_model(local_weights, model_id, quant.value, show)
    print(f"sha256:{model_id}")


@models.command()
def rm(model: Model, cache_dir: CacheDir = None) -> None:
    """Drop a model from the cache; what another model shares with it, or is in use, stays."""
    from flowedge.weights.inventory import remove_model  # noqa: PLC0415
    from flowedge.weights.local_weights import LocalWeights  # noqa: PLC0415

    freed = remove_model(LocalWeights.configured(cache_dir, None), model)
    typer.echo(f"{freed / 2**20:.1f} MiB were freed", err=True)


@models.command()
def verify(
    model: Annotated[
        str | None, typer.Argument(help="sha256:HASH, of which 8 digits are enough; all when not given.")
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Read what is in the cache and drop what is damaged; it is fetched again when it is needed."""
    from flowedge.core.errors import CheckpointError  # noqa: PLC0415
    from flowedge.weights.inventory import verify_models  # noqa: PLC0415
    from flowedge.weights.local_weights import LocalWeights  # noqa: PLC0415

    good, damaged = verify_models(LocalWeights.configured(cache_dir, None), model)
    if damaged:
        raise CheckpointError(
            f"{damaged} of {good + damaged} objects were damaged and were dropped; they are fetched again "
            "when they are needed, or now by flowedge models pull"
        )
    typer.echo(f"{good} objects are as their hashes say", err=True)


def _agents(peers: str | None, timeout: float) -> list[str]:
    """The addresses of the agents to ask: those named, or those that are found."""
    import asyncio  # noqa: PLC0415

    from flowedge.agent.config.loading import load_config  # noqa: PLC0415
    from flowedge.cli.options import split_peers  # noqa: PLC0415
    from flowedge.discovery.discovery import discover  # noqa: PLC0415

    if peers is not None:
        return list(split_peers(peers))
    settings = load_config().config.discovery
    records = asyncio.run(discover(timeout, settings=settings))
    found = [record.address for record in records if not record.mismatch]
    return list(dict.fromkeys([*settings.peers, *found]))


def _print(held: list[HeldModel]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for column in ("model", "name", "stored in", "on"):
        table.add_column(column, overflow="fold")
    for column in ("here", "of all"):
        table.add_column(column, justify="right")
    table.add_column("")
    for model in held:
        share = "whole" if model.here_bytes >= model.total_bytes else "a part"
        cells = [f"sha256:{model.id[:12]}", model.name, model.quant, model.device]
        cells += [f"{model.here_bytes / 2**20:.1f} MiB", f"{model.total_bytes / 2**20:.1f} MiB"]
        table.add_row(*map(escape, cells), "its directory" if model.in_directory else share)
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False).print(table)
