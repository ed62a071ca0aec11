"""`flowedge profile`: measures devices and links for the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import BUNDLED, Quant
from flowedge.cli.trust import ClusterDir, Insecure, choose_identity


def profile(
    out: Annotated[Path, typer.Option(help="Directory of the profiles and the scenario.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST:PORT]...",
            help="Idle agents in pipeline order: the draft node, then the stages. None: this machine.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, or the bundled model.")] = BUNDLED,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="EAGLE-1/2 head, or none; repeated, recall beside it. The bundled model has a head."
        ),
    ] = None,
    quant: Annotated[Quant, typer.Option(help="Quantisation of the model's layers.")] = Quant.NONE,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="Timings of each thing; the median counts.")
    ] = 15,
    stack_mib: Annotated[
        int,
        typer.Option(
            min=4,
            max=1 << 16,
            help="MiB of weights of the layers for the roofline; more than the caches hold.",
        ),
    ] = 256,
    link_mib: Annotated[int, typer.Option(min=1, max=256, help="MiB that each link is measured with.")] = 32,
    round_trips: Annotated[
        int, typer.Option(min=1, max=500, help="Small messages there and back for the latency of a link.")
    ] = 100,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Measure devices, and the links between them, and write profiles and a scenario that runs on them.

    With hosts each agent measures itself, and each link of the ring, the last stage's back to the draft node
    included, is measured in its direction. An agent that is part of a pipeline refuses. Whatever else runs on
    the devices is in the figures.
    """
    from flowedge.cli.options import choose_drafter, local_path, split_peers  # noqa: PLC0415
    from flowedge.cli.screens.profile_screen import profile_progress, show_profiles  # noqa: PLC0415
    from flowedge.profiling.measurement import measure_options  # noqa: PLC0415
    from flowedge.profiling.run import ProfileOptions, run_profile  # noqa: PLC0415

    options = ProfileOptions(
        out=out,
        measure=measure_options(
            model=local_path(model),
            drafters=choose_drafter(model, drafter, "autoregressive"),
            quant=quant.value,
            repeats=repeats,
            stack_mib=stack_mib,
        ),
        hosts=tuple(address for host in hosts or [] for address in split_peers(host)),
        link_bytes=link_mib << 20,
        round_trips=round_trips,
        force=force,
    )
    choose_identity(cluster_dir, insecure)
    with profile_progress() as progress:
        profiled = run_profile(options, progress)
    show_profiles(profiled)
