"""A simple cost table for the virtual clock: the same times on every device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flowedge.core.arrays import Payload
from flowedge.core.messages import Message, Prune, Segment, SegmentBatch, Tapped
from flowedge.engine.jobs import (
    DraftBatch,
    DraftJob,
    ForwardBatch,
    StageJob,
)
from flowedge.planning.virtual_pipeline import DRAFT_NODE

HEADER_BYTES = 64  # about what a message takes apart from its rows


@dataclass(frozen=True)
class FixedCosts:
    """Costs of memory-bound compute and of links with a fixed rate.

    The defaults are those of LLaMA2-7B in fp16 on four Orin Nano stages at 150 Mbit/s, measured in a trial.
    """

    stage_s: float = 0.070  # one forward of a stage, however few its rows
    row_s: float = 0.0001  # that each row adds to a forward
    layers: int = 8  # of a forward, after each of which it can be aborted
    side_s: float = 0.030  # one forward of the whole model of a side route
    draft_s: float = 0.011  # one draft forward
    verify_s: float = 0.004  # the LM head over a segment
    row_bytes: int = 8192  # a hidden state on the wire
    bytes_per_s: float = 150e6 / 8
    latency_s: float = 0.001

    def stage_job(self, stage: int, job: StageJob) -> float:
        if not isinstance(job, ForwardBatch):
            return 0.0
        draws = any(each.draw is not None and len(each.draw.visitable) > 0 for each in job.forwards)
        return self.layers * self.layer(stage, job) + (self.verify_s if draws else 0.0)

    def layer(self, stage: int, job: ForwardBatch) -> float:
        forward_s = self.side_s if stage < DRAFT_NODE else self.stage_s
        return (forward_s + self.row_s * job.num_rows) / self.layers

    def draft_job(self, job: DraftJob) -> float:
        if not isinstance(job, DraftBatch):
            return 0.0
        # The root layer is read off the forward that extends the drafter's cache.
        return self.verify_s if job.verifies else self.draft_s

    def conclude(self, _place: int, _job: StageJob | DraftJob) -> float:
        return 0.0

    def receive(self, _place: int, _message: Message) -> float:
        return 0.0

    def speed(self, _place: int, _busy: Collection[int]) -> float:
        return 1.0

    def transfer(self, sender: int, message: Message) -> float:
        return self.message_bytes(sender, message) / self.bytes_per_s

    def latency(self, _sender: int) -> float:
        return self.latency_s

    def message_bytes(self, _sender: int, message: Message) -> int:
        match message:
            case Segment():
                return HEADER_BYTES + self._segment_bytes(message)
            case SegmentBatch():
                return HEADER_BYTES + sum(self._segment_bytes(segment) for segment in message.segments)
            case Prune():
                return HEADER_BYTES + 4 * len(message.retained)
            case Tapped():
                return HEADER_BYTES + self._payload_bytes(message.rows)
            case _:
                return HEADER_BYTES

    def _segment_bytes(self, segment: Segment) -> int:
        tokens = sum(4 * len(each) for each in (segment.tokens, segment.drawn) if each is not None)
        return 4 * segment.num_rows + tokens + self._payload_bytes(segment.payload)

    def _payload_bytes(self, payload: Payload) -> int:
        """Return the bytes of token ids [n] or of hidden states [n, width], which may have no width."""
        if payload.ndim == 1:
            return 4 * len(payload)
        return self.row_bytes * len(payload) if payload.shape[1] else 0
