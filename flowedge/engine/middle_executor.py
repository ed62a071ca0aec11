"""Runs the jobs of a stage that holds a middle model."""

from __future__ import annotations

from flowedge.core.arrays import Payload
from flowedge.engine.executors import BlockExecutor
from flowedge.engine.jobs import Forward, StageJob
from flowedge.models.layers.tensors import to_tensor
from flowedge.models.layers.whole_model import MiddleModel


class MiddleExecutor(BlockExecutor):
    """A StageExecutor that answers each row with a token id, int32 [n]."""

    def __init__(self, model: MiddleModel) -> None:
        super().__init__(model.block)
        self.model = model

    @property
    def weight_bytes(self) -> int:
        return self.model.weight_bytes

    def close(self) -> None:
        """See BlockExecutor."""
        super().close()
        del self.model

    def run(self, job: StageJob) -> Payload | None:
        """Run one job; a Forward that died on the way gives None. Raises FlowEdgeError."""
        if not isinstance(job, Forward):
            return super().run(job)
        job.payload = self.model.known(job.payload)
        hidden = super().run(job)
        return None if hidden is None else self.model.predict(to_tensor(hidden), job.positions)
