"""`flowedge use` and `flowedge release`: change or end the pipeline that devices run."""

from __future__ import annotations

from typing import Annotated

import typer

from flowedge.cli.options import MODEL_HELP, ClusterDir, Insecure, choose_drafting, split_names
from flowedge.cli.output import say
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.request import DEFAULT_STRATEGY


@with_setting_options
def use(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, without=("model",))],
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Names of the devices: the draft node, then the stages in layer order. Default: all.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="End requests that are running or waiting.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Have the devices of the network run another model, and wait until they do.

    The pipeline that runs on them is released before. Its draft node stays the draft node.
    """
    from flowedge.cli.pipelines.answering import find_devices
    from flowedge.cli.pipelines.model_choice import Preparation
    from flowedge.cli.pipelines.request import requested_pipeline
    from flowedge.cli.pipelines.running import ModelChange
    from flowedge.cli.screens.answer_screen import AnswerScreen
    from flowedge.cli.trust import choose_credentials
    from flowedge.core.generate_options import GenerateOptions

    drafting = choose_drafting(model, pipeline["drafter"], DEFAULT_STRATEGY)
    request = requested_pipeline({**pipeline, "model": model}, drafting)
    screen = AnswerScreen()
    Preparation(screen.progress, screen.note, GenerateOptions()).run(request)
    choose_credentials(cluster_dir, insecure)
    if drafting.notice:
        screen.note(drafting.notice)
    found = find_devices(request.discover_s, least=2)
    names = [] if devices is None else split_names(devices)
    with screen.transfers() as transfers:
        say(ModelChange(request, names, force, screen.progress, transfers).run(found))


def release(
    names: Annotated[
        str,
        typer.Argument(
            metavar="NAME,...",
            help="Names or addresses of devices, or labels of pipelines, as `flowedge devices` lists them.",
        ),
    ],
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Release the pipelines of devices, and free their memory; running requests fail.

    A device that is given by its address is asked there, without a search of the network.
    """
    from flowedge.cli.pipelines.planned_pipeline import describe
    from flowedge.cli.pipelines.running import of_names
    from flowedge.cli.trust import choose_credentials
    from flowedge.network.address import is_address

    choose_credentials(cluster_dir, insecure)
    wanted = split_names(names)
    if all(map(is_address, wanted)):
        devices = {address: describe(address) for address in wanted}
    else:
        from flowedge.cli.pipelines.answering import find_devices

        devices = find_devices(discover_s=3.0, least=1)
    pipelines = of_names(wanted, devices)
    for pipeline in pipelines:
        pipeline.release()
        say(f"released: {pipeline}")
    if not pipelines:
        say(f"{', '.join(wanted)}: idle already, part of no pipeline")
