"""`flowedge train-drafter`: an EAGLE head for a target."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import Dtype, Quant
from flowedge.cli.trust import ClusterDir, Insecure, choose_identity

DEFAULT_MINUTES = 30.0


class HeadKind(str, Enum):
    """What --kind takes."""

    EAGLE = "eagle"
    EAGLE3 = "eagle3"


def train_drafter(
    model: Annotated[str, typer.Argument(help="The target: checkpoint directory, hub id, or bundled.")],
    data: Annotated[
        Path, typer.Option(help="JSON lines with messages, prompt and response, turns, or text.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the head and the training's checkpoints.")],
    kind: Annotated[HeadKind, typer.Option(help="Of the head: EAGLE-1/2 or EAGLE-3.")] = HeadKind.EAGLE,
    init: Annotated[
        str, typer.Option(help="Head to begin with, of the same kind: directory, hub id or bundled name.")
    ] = "",
    minutes: Annotated[
        float | None, typer.Option(help=f"Minutes of training; {DEFAULT_MINUTES:g} without --steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights, instead of minutes.")] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one update.")] = 2048,
    max_length: Annotated[int, typer.Option(help="Tokens of a text; what is beyond is cut.")] = 2048,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Peak learning rate; by the model's width if not given.")
    ] = None,
    cross_entropy_weight: Annotated[
        float, typer.Option(help="Of the tokens' loss; that of the features has 1.")
    ] = 0.1,
    draft_vocab: Annotated[
        int, typer.Option(help="Tokens that an EAGLE-3 head can propose, the data's most frequent.")
    ] = 32000,
    unroll: Annotated[
        int, typer.Option(help="Steps of an EAGLE-3 head, on its own output, that it is trained through.")
    ] = 7,
    self_generate: Annotated[
        int, typer.Option(help="Prompts that the target answers itself, to train on the answers as well.")
    ] = 0,
    answer_tokens: Annotated[int, typer.Option(help="Tokens of a self-generated answer, at most.")] = 256,
    evaluate: Annotated[int, typer.Option(help="Prompts to hold out and evaluate the head on.")] = 4,
    quant: Annotated[Quant, typer.Option(help="Quantisation of the target's layers.")] = Quant.NONE,
    dtype: Annotated[Dtype, typer.Option(help="Of the target's other weights.")] = Dtype.FLOAT32,
    stages: Annotated[
        int | None, typer.Option(min=1, help="Have the layers on so many agents started here, for this run.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Have the layers on these agents, host:port,..., in layer order.")
    ] = None,
    devices: Annotated[
        bool, typer.Option("--devices", help="Have the layers on the idle agents found on the network.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(help="Layers of each stage, such as 2,3,3; even if not given.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda: where the head is trained, and the layers that are here.")
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the head's first weights, the noise and the order.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew instead of going on.")] = False,
    cluster_dir: ClusterDir = None,
    insecure: Insecure = False,
) -> None:
    """Train an EAGLE head for a target; given again after an interruption, the command goes on.

    The target's layers are in this process, or on agents with --stages, --peers or --devices.
    """
    from flowedge.cli.options import local_path, split_peers  # noqa: PLC0415
    from flowedge.cli.stages import StagesRequest  # noqa: PLC0415
    from flowedge.training.settings import TrainingSettings  # noqa: PLC0415

    settings = TrainingSettings(
        kind=kind.value,
        init=local_path(init) if init else "",
        minutes=DEFAULT_MINUTES if minutes is None and steps is None else minutes,
        steps=steps,
        batch_tokens=batch_tokens,
        max_length=max_length,
        learning_rate=learning_rate,
        cross_entropy_weight=cross_entropy_weight,
        draft_vocab=draft_vocab,
        unroll=unroll,
        self_generate=self_generate,
        answer_tokens=answer_tokens,
        evaluate=evaluate,
        quant=quant.value,
        dtype=dtype.value,
        seed=seed,
    )
    agents = StagesRequest(stages, tuple(split_peers(peers)) if peers is not None else None, devices, split)
    choose_identity(cluster_dir, insecure)
    from flowedge.models.libraries import import_libraries  # noqa: PLC0415

    import_libraries()
    from flowedge.cli.screens.train_screen import train_screen  # noqa: PLC0415
    from flowedge.cli.train_target import open_target  # noqa: PLC0415
    from flowedge.training.run import train_drafter as train  # noqa: PLC0415

    with train_screen(out) as screen:
        opener = open_target(agents, device, lambda name, doing: screen.say(f"{name}: {doing}"))
        acceptance = train(
            local_path(model), data, out, settings, screen, open_target=opener, restart=restart
        )
    print(f"the head is in {out}: give it as --drafter {out}")
    if acceptance.cycles:
        print(
            f"acceptance length {acceptance.length:.2f} tokens a draft-verify cycle "
            f"({acceptance.tokens} tokens, {acceptance.prompts} held-out prompts)"
        )
    else:
        print("no prompt was held out and fits, so it is not evaluated")
