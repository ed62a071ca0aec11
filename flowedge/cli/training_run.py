"""The part of `flowedge train-drafter` that needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from flowedge.cli.output import say
from flowedge.cli.screens.train_screen import train_screen
from flowedge.cli.stages import StagesRequest, open_stages
from flowedge.client.assembly import OnProgress
from flowedge.models.layers.taps import Taps
from flowedge.training.cluster_target import open_cluster_target
from flowedge.training.interruption import Interruption
from flowedge.training.local_target import open_local_target
from flowedge.training.run import train_drafter
from flowedge.training.settings import TrainingSettings
from flowedge.training.target import OpenTarget, TrainingTarget, check_device


def train_and_report(
    model: str,
    data: Path,
    out: Path,
    settings: TrainingSettings,
    agents: StagesRequest,
    device: str,
    *,
    restart: bool,
) -> None:
    """Train a head and print where it is and how well it drafts.

    Args:
        agents: where the target's layers are; in this process if no agents are asked for.
        device: "cpu" or "cuda", of the head and of layers in this process.
        restart: whether to begin anew instead of going on after an interruption.
    """
    interruption = Interruption()
    with interruption.handled(), train_screen(out) as screen:
        opener = _open_target(agents, device, lambda name, doing: screen.say(f"{name}: {doing}"))
        acceptance = train_drafter(
            model,
            data,
            out,
            settings,
            screen,
            open_target=opener,
            restart=restart,
            deferred=interruption.deferred,
        )
    say(f"the head is in {out}: give it as --drafter {out}")
    if acceptance.cycles:
        say(
            f"acceptance length {acceptance.length:.2f} tokens a draft-verify cycle "
            f"({acceptance.tokens} tokens, {acceptance.prompts} held-out prompts)"
        )
    else:
        say("the head is not evaluated: no prompt was held out that fits the context")


def _open_target(agents: StagesRequest, device_name: str, report: OnProgress) -> OpenTarget:
    device = check_device(device_name)

    @contextmanager
    def opener(source: str, quant: str, dtype: torch.dtype, taps: Taps) -> Iterator[TrainingTarget]:
        if not agents.any_asked:
            with open_local_target(source, quant, dtype, taps, device) as target:
                yield target
            return
        with (
            open_stages(agents, report) as stages,
            open_cluster_target(
                source, quant, dtype, taps, stages=stages, split=agents.counts, report=report, device=device
            ) as target,
        ):
            yield target

    return opener
