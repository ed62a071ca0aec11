"""`flowedge agent`: makes this device part of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.trust import INSECURE_HELP, ClusterDir


def agent(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 0.0.0.0 for every network of the device, as it is by default once "
            "the device has joined a cluster. Until then loopback."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0, the default, takes a free one."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the device; the one it joined its cluster with, or the host's."),
    ] = None,
    advertise: Annotated[
        bool | None,
        typer.Option(
            "--advertise/--no-advertise", help="Make the agent known by zeroconf, as it is by default."
        ),
    ] = None,
    cache_dir: Annotated[
        str | None,
        typer.Option(help="Directory to keep weights in; FLOWEDGE_CACHE_DIR or ~/.cache/flowedge."),
    ] = None,
    cache_gib: Annotated[
        float | None,
        typer.Option(min=0, help="GiB they may take there; FLOWEDGE_CACHE_GIB or 16. 0 keeps none."),
    ] = None,
    cluster_dir: ClusterDir = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help=INSECURE_HELP)] = None,
    hub: Annotated[
        bool | None,
        typer.Option("--hub/--no-hub", help="Ask the hub for models that no device has; off by default."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help='"text", the default, or "json": an object a line, on stderr.')
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(help='What to log at least: "debug", "info" (the default), "warning", "error".'),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration file; /etc/flowedge/agent.toml, if there is one, when not given."),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting with where its value came from, and exit."),
    ] = False,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Run the agent of this device: it takes a role in a pipeline when it is asked to, and serves it.

    Flags go before environment variables (FLOWEDGE_AGENT__PORT), those before the configuration file.
    """
    from flowedge.agent.config.loading import load_config  # noqa: PLC0415

    flags = {
        "--host": ("agent", "host", host),
        "--port": ("agent", "port", port),
        "--name": ("agent", "name", name),
        "--advertise": ("agent", "advertise", advertise),
        "--cluster-dir": ("security", "cluster_dir", None if cluster_dir is None else str(cluster_dir)),
        "--insecure": ("security", "insecure", insecure),
        "--cache-dir": ("cache", "dir", cache_dir),
        "--cache-gib": ("cache", "gib", cache_gib),
        "--hub": ("weights", "hub", hub),
        "--log-format": ("log", "format", log_format),
        "--log-level": ("log", "level", log_level),
    }
    effective = load_config(flags, config)
    if print_config:
        from flowedge.agent.config.rendering import effective_toml  # noqa: PLC0415

        print(effective_toml(effective), end="")
        return
    if exit_with_parent:
        from flowedge.cli.orphan import stop_when_input_closes  # noqa: PLC0415

        stop_when_input_closes()
    from flowedge.agent.main import serve  # noqa: PLC0415

    file = "" if effective.file is None else str(effective.file)
    serve(replace(effective.config.settings(), config=file))
