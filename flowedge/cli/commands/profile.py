"""`flowedge profile`: measures devices and links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import (
    ClusterDir,
    Insecure,
    choose_drafter,
    local_path,
    split_peers,
)
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.pipeline_config import PipelineConfig


@with_setting_options
def profile(
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the profiles and the scenario.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST:PORT]...",
            help="Idle agents: the draft node, then the stages. Default: this machine only.",
        ),
    ] = None,
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, only=("model", "quant", "dtype"))],
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="EAGLE-1/2 head, or none. Default: the bundled model's head. Repeat the option to add "
            "recall."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="What this machine computes on: auto, cpu, cuda or cuda:N. Agents use their own setting."
        ),
    ] = "auto",
    repeats: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Number of timings of each kind of work, of which the median is used."
        ),
    ] = 15,
    stack_mib: Annotated[
        int,
        typer.Option(
            min=4,
            max=1 << 16,
            metavar="MIB",
            help="Size of the layers timed for the roofline; must exceed the caches.",
        ),
    ] = 256,
    link_mib: Annotated[
        int, typer.Option(min=1, max=256, metavar="MIB", help="Data sent to measure each link.")
    ] = 32,
    round_trips: Annotated[
        int, typer.Option(min=1, max=500, help="Number of round trips for the latency of a link.")
    ] = 100,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Measure devices and the links between them; write profiles and a scenario that runs on them.

    With hosts, each agent measures itself. Each link is measured in the direction of the pipeline, and from
    the last stage back to the draft node. An agent that is part of a pipeline refuses. Other programs that
    run on the devices distort the measurements.
    """
    from flowedge.cli.screens.profile_screen import profile_progress, show_profiles
    from flowedge.cli.trust import choose_credentials
    from flowedge.device.compute import checked_device
    from flowedge.planning.measuring.run import ProfileOptions, run_profile
    from flowedge.planning.profile.measurement import MeasureOptions

    options = ProfileOptions(
        out=out,
        measure=MeasureOptions(
            model=local_path(pipeline["model"]),
            drafters=choose_drafter(pipeline["model"], drafter),
            quant=pipeline["quant"],
            repeats=repeats,
            stack_mib=stack_mib,
        ),
        hosts=tuple(address for host in hosts or [] for address in split_peers(host)),
        link_bytes=link_mib << 20,
        round_trips=round_trips,
        force=force,
        dtype=pipeline["dtype"],
        device=checked_device(device),
    )
    choose_credentials(cluster_dir, insecure)
    with profile_progress() as progress:
        profiled = run_profile(options, progress)
    show_profiles(profiled)
