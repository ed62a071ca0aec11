"""Sessions of `auto` for scripts of events, in pipelines whose times are plain."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import StageTime
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.events import Layer
from flowedge.strategies.settings import AutoSettings
from tests.strategies.script import Script
from tests.support.seams import times_of

LONG = 1e9  # seconds; nothing is late


def auto(measured: MeasuredPipeline | None = None, **changes: float) -> Auto:
    """Two candidates a node, whose scores stay the drafter's word; all rows are worth sending."""
    values = {"candidates": 2, "prior": 1e9, "regrow_share": LONG, "row_price": 0.0, **changes}
    return Auto(AutoSettings.from_options(values), measured)


def slow(
    stages: int = 2,
    measured: MeasuredPipeline | None = None,
    *,
    together: bool = False,
    first_s: float = 1.0,
    layer_s: float = 1e-6,
    **changes: float,
) -> Script:
    """A pipeline with trips of a second a stage, for any number of rows, and a quick drafter.

    first_s: what the first stage takes; layer_s: a layer.
    """
    strategy = auto(measured, **changes)
    times_of(strategy).observe_layer(layer_of(layer_s), of_root=True)
    stage_times = StageTime(1, first_s), *trip_of(1, stages - 1).stage_times
    trips = (PipelineTrip(1, first_s + stages - 1, stage_times),)
    return Script(strategy, granted=9, stages=stages, trips=trips, together=together)


def trip_of(rows: int, stages: int) -> PipelineTrip:
    """A second in each stage, and none on the links."""
    return PipelineTrip(rows, float(stages), (StageTime(rows, 1.0),) * stages)


def layer_of(seconds: float, together: int = 1) -> Layer:
    """A layer that tells nothing but its time."""
    return Layer(0, (0,), np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1)), seconds, together)
