"""The time that a device takes to draw tokens, to choose the device that verifies."""

from __future__ import annotations

import time

import numpy as np
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.host.copies import to_device
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.sampling.tree_draws import tree_draws

_ROWS = 4  # of a segment that are visited, about
_REPEATS = 5


@torch.inference_mode()
def draw_seconds(head: LMHead) -> float:
    """Return the least seconds, of a few runs, in which the tokens after the rows of a path are drawn."""
    sampler, positions = TokenSampler(SamplingParams(), head.vocab_size), np.arange(1, _ROWS + 1)
    values = np.linspace(-1, 1, _ROWS * head.hidden_size, dtype=np.float32)
    hidden, streams = to_device(
        head.device, values.reshape(_ROWS, head.hidden_size), sampler.streams(positions)
    )
    hidden = hidden.to(head.weight.dtype)
    seconds = []
    for _ in range(_REPEATS + 1):
        begun = time.perf_counter()
        drawn_after = tree_draws(head, sampler, hidden, streams, range(-1, _ROWS - 1), positions)
        for row in range(_ROWS):
            drawn_after(row)
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])  # the first run makes what the others reuse
