"""What a middle model of a PipeSpec hierarchy takes, in seconds of virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flowedge.engine.jobs import Forward, StageJob
from flowedge.profiling.documents.model import LayerSize
from flowedge_testbed.costs.roofline import batch_layer_s, head_s
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
        return self.batch([job])

    def layer(self, job: Forward) -> float:
        return self.batch_layer([job])

    def batch(self, forwards: Sequence[Forward]) -> float:
        """Return the time of one forward over the rows of several sessions."""
        size, rows = self._size, sum(job.num_rows for job in forwards)
        head = head_s(self.device, size.vocab * size.hidden, size.vocab, rows, self._stored)
        return size.layers * self.batch_layer(forwards) + head

    def batch_layer(self, forwards: Sequence[Forward]) -> float:
        """Return the time of one layer over the rows of several sessions."""
        parts = [(job.num_rows, job.cached + job.num_rows) for job in forwards]
        return batch_layer_s(self.device, self._layer, parts, "none")
