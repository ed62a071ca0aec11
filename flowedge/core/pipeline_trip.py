"""The measured round trip of a segment through a pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineTrip:
    """One segment's way through the pipeline.

    Attributes:
        rows: rows that the segment had when it was sent.
        seconds: from when the draft node composed the segment until it was back.
    """

    rows: int
    seconds: float
