"""What a middle model of a PipeSpec hierarchy takes, in seconds of virtual time."""

from __future__ import annotations

import random

from flowedge.engine.jobs import Forward, StageJob
from flowedge.profiling.documents.model import LayerSize
from flowedge_testbed.costs.roofline import head_s, layer_s
from flowedge_testbed.emulation.middle_models import EmulatedMiddle


class MiddleCosts:
    """The costs of one middle model.

    Attributes:
        device: what it runs on.
        link: the link that leaves its device.
        jitter: the generator of that link's jitter.
    """

    def __init__(self, middle: EmulatedMiddle, stored_bytes: int, seed: int) -> None:
        self.link = middle.link
        self.jitter = random.Random(seed)
        self._size, self.device = middle.size, middle.device
        self._layer = LayerSize.of(middle.size, stored_bytes)
        self._stored = stored_bytes

    def job(self, job: StageJob) -> float:
        """Return the time of all layers, and of the LM head, which answers every row."""
        if not isinstance(job, Forward):
            return 0.0
        size, rows = self._size, job.num_rows
        head = head_s(self.device, size.vocab * size.hidden, size.vocab, rows, self._stored)
        return size.layers * self.layer(job) + head

    def layer(self, job: Forward) -> float:
        return layer_s(self.device, self._layer, job.num_rows, job.cached + job.num_rows, "none")
