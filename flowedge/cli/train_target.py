"""Where the layers of a training's target are, as the options say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flowedge.cli.stages import StagesRequest, open_stages
from flowedge.client.assembly import OnProgress
from flowedge.models.layers.taps import Taps
from flowedge.training.targets.local_target import open_local_target
from flowedge.training.targets.target import OpenTarget, TrainingTarget, check_device


def open_target(agents: StagesRequest, device_name: str, report: OnProgress) -> OpenTarget:
    """What opens the target on these agents, or in this process when none are asked for.

    device_name: "cpu" or "cuda", of the head and of layers in this process. BadRequestError when torch cannot
    compute on it.
    """
    device = check_device(device_name)

    @contextmanager
    def opener(source: str, quant: str, dtype: torch.dtype, taps: Taps) -> Iterator[TrainingTarget]:
        if not agents.any_asked:
            with open_local_target(source, quant, dtype, taps, device) as target:
                yield target
            return
        from flowedge.training.targets.cluster_target import open_cluster_target  # noqa: PLC0415 (gRPC)

        with (
            open_stages(agents, report) as stages,
            open_cluster_target(
                source, quant, dtype, taps, stages=stages, split=agents.counts, report=report, device=device
            ) as target,
        ):
            yield target

    return opener
