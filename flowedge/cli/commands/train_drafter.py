"""`flowedge train-drafter`: trains an EAGLE head for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import MODEL_HELP, ClusterDir, Insecure, local_path, split_peers
from flowedge.cli.setting_flags import OptionsOf, Typed, with_setting_options
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.planning.profile.model import StoredDtype
from flowedge.training.settings import HeadKind, TrainingSettings

DEFAULT_MINUTES = 30.0


@with_setting_options
def train_drafter(
    *,
    model: Annotated[str, typer.Argument(help=f"The target. {MODEL_HELP}")],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help="JSON lines with messages, prompt and response, turns, or text."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the head and the training's checkpoints.")
    ],
    kind: Annotated[HeadKind, typer.Option(help="Kind of head: of EAGLE, or a block head.")] = "eagle",
    init: Annotated[
        str, typer.Option(help="Head of the same kind to start from: directory, hub id or bundled name.")
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option(
            help=f"Minutes of training, which may be raised later; {DEFAULT_MINUTES:g} without --steps."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of weight updates, instead of --minutes.")] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in an update.")] = 2048,
    max_length: Annotated[
        int, typer.Option(help="Maximum number of tokens in a text; the rest is cut off.")
    ] = 2048,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Peak learning rate. Default: chosen by the model's width.")
    ] = None,
    cross_entropy_weight: Annotated[
        float, typer.Option(help="Weight of the loss on tokens; the loss on features has weight 1.")
    ] = 0.1,
    draft_vocab: Annotated[
        int,
        typer.Option(
            help="Number of tokens, the most frequent in the data, whose distribution a head learns. "
            "An EAGLE-3 head can propose no others."
        ),
    ] = 32000,
    unroll: Annotated[
        int | None,
        typer.Option(
            help="Training steps of an EAGLE head on its own output. Default: 7 of EAGLE-3, else 1."
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Rows of a block of a block head.")] = 16,
    head_layers: Annotated[int, typer.Option(help="Layers of a block head.")] = 5,
    self_generate: Annotated[
        int, typer.Option(help="Number of prompts for the target to answer, to train on the answers.")
    ] = 0,
    answer_tokens: Annotated[
        int, typer.Option(help="Maximum number of tokens in a self-generated answer.")
    ] = 256,
    evaluate: Annotated[
        int, typer.Option(help="Number of prompts to hold out for the evaluation of the head.")
    ] = 4,
    pipeline: Annotated[Typed, OptionsOf(PipelineConfig, only=("quant", "split"))],
    dtype: Annotated[StoredDtype, typer.Option(help="Dtype of the target's other weights.")] = "float32",
    stages: Annotated[
        int | None, typer.Option(min=1, help="Put the layers on N agents, started for this run.")
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Put the layers on these agents, in layer order."),
    ] = None,
    devices: Annotated[
        bool, typer.Option("--devices", help="Put the layers on the idle agents found on the network.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where the head and the layers in this process are computed: cpu or cuda.")
    ] = "cpu",
    seed: Annotated[
        int, typer.Option(help="Seed of the initial weights, the noise and the order of the data.")
    ] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Start over instead of continuing.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Train a draft head for a target; the same command continues after an interruption.

    The target's layers are in this process, or on agents with --stages, --peers or --devices.
    """
    from flowedge.cli.pipelines.stages import StagesRequest
    from flowedge.cli.trust import choose_credentials
    from flowedge.models.host.libraries import import_libraries

    settings = TrainingSettings(
        kind=kind,
        init=local_path(init) if init else "",
        minutes=DEFAULT_MINUTES if minutes is None and steps is None else minutes,
        steps=steps,
        batch_tokens=batch_tokens,
        max_length=max_length,
        learning_rate=learning_rate,
        cross_entropy_weight=cross_entropy_weight,
        draft_vocab=draft_vocab,
        unroll=unroll,
        block_size=block_size,
        head_layers=head_layers,
        self_generate=self_generate,
        answer_tokens=answer_tokens,
        evaluate=evaluate,
        quant=pipeline["quant"],
        dtype=dtype,
        seed=seed,
    )
    hosts = None if peers is None else tuple(split_peers(peers))
    agents = StagesRequest(stages, hosts, devices, pipeline["split"])
    choose_credentials(cluster_dir, insecure)
    import_libraries()
    from flowedge.cli.screens.train_screen import train_and_report

    train_and_report(local_path(model), data, out, settings, agents, device, restart=restart)
