"""`flowedge agent`: makes this device part of the network."""

from __future__ import annotations

from typing import Annotated

import typer


def agent(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 for every network of the device. Loopback unless told "
            "otherwise: an agent trusts whoever can reach it."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the device; the host's name if not given.")
    ] = None,
    advertise: Annotated[bool, typer.Option(help="Make the agent known by zeroconf.")] = True,
    cache_dir: Annotated[
        str | None,
        typer.Option(help="Directory to keep quantised weights in; FLOWEDGE_CACHE_DIR or ~/.cache/flowedge."),
    ] = None,
    cache_gib: Annotated[
        float | None,
        typer.Option(min=0, help="GiB they may take there; FLOWEDGE_CACHE_GIB or 16. 0 keeps none."),
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Run the agent of this device: it takes a role in a pipeline when it is asked to, and serves it."""
    from flowedge.agent.main import AgentSettings, serve  # noqa: PLC0415
    from flowedge.cluster.address import host_ip  # noqa: PLC0415

    if exit_with_parent:
        from flowedge.cli.orphan import stop_when_input_closes  # noqa: PLC0415

        stop_when_input_closes()
    settings = AgentSettings(
        host=host_ip(host),
        port=port,
        name=name,
        advertise=advertise,
        cache_dir=cache_dir,
        cache_gib=cache_gib,
    )
    serve(settings)
