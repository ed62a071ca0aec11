"""`flowedge inspect`: the sizes of a model; `flowedge plan`: a plan of it over devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from flowedge.cli.options import MODEL_HELP, AsJson
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import PipelineConfig, Quantisation
from flowedge.device.compute import AUTO, PREFERENCE, find_compute
from flowedge.planning.profile.model import StoredDtype

QUANTS = f"<{'|'.join(get_args(Quantisation))}>"  # Typer has no lists of literals


@with_setting_options
def inspect(
    *,
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    quant: Annotated[
        list[str] | None,
        typer.Option(metavar=QUANTS, help="Quantisation of the layers; repeatable. Default: all."),
    ] = None,
    dtype: Annotated[
        StoredDtype | None,
        typer.Option(
            metavar=f"<{'|'.join(PREFERENCE)}>",
            help="Dtype of unquantised weights, keys and values. Default: the best of this machine.",
        ),
    ] = None,
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, only=("kv",))],
    devices: Annotated[
        int | None,
        typer.Option(min=2, help="Split the model over N equal devices: a draft node and N - 1 stages."),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0.0001, metavar="GIB", help="Memory of each device for weights and caches."),
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Context length in tokens.")] = 4096,
    as_json: AsJson = False,
) -> None:
    """Show a model's layers and sizes and, with --memory, how many devices it needs; reads headers only."""
    if devices is not None and memory is None:
        raise BadRequestError("--devices needs --memory, the GiB of each device")
    from flowedge.cli.screens.model_screen import show_model

    show_model(
        model,
        dtype or find_compute(AUTO).best.dtypes[0],
        list(dict.fromkeys(quant or [])),
        kv=pipeline["kv"],
        devices=devices,
        memory=memory,
        context=context,
        as_json=as_json,
    )


def plan(
    *,
    model: Annotated[
        str,
        typer.Argument(
            help="Model: a directory with a config.json, a hub id, or a shipped profile such as llama3.1-8b."
        ),
    ],
    devices: Annotated[
        Path,
        typer.Option(metavar="FILE", help="YAML file of the boards and their links; see docs/planning.md."),
    ],
    quant: Annotated[
        str | None,
        typer.Option(
            metavar=QUANTS,
            help="Quantisation of the layers. Default: the best that fits of none, int8 and nf4.",
        ),
    ] = None,
    drafter: Annotated[
        str, typer.Option(help="Drafter among those of the model's profile. Default: its first.")
    ] = "",
    context: Annotated[int, typer.Option(min=1, help="Context of a session in tokens.")] = 4096,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that have to fit at the same time.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Plan a model over boards: which take part, their layers, and the tokens a second to expect."""
    chosen = next((each for each in get_args(Quantisation) if each == quant), None)
    if quant is not None and chosen is None:
        raise BadRequestError(f"the quantisation {quant!r} is none of {QUANTS[1:-1].replace('|', ', ')}")
    from flowedge.cli.screens.plan_screen import show_plan

    show_plan(
        model, devices, quant=chosen, drafter=drafter, context=context, sessions=sessions, as_json=as_json
    )
