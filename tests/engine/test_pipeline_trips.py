"""The trip times that strategies are told, on a virtual clock with known costs."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.messages import StageTime
from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.strategies.events import Layer, Prefilled, StrategyEvent, Verified
from flowedge.strategies.registry import make_strategy
from tests.engine.exact_model import ExactHead, ExactStage
from tests.engine.histories import NoText

COMPUTE, TRANSFER, LATENCY, DRAFT = 3.0, 1.0, 0.5, 0.25


class EvenCosts:
    def stage_job(self, stage, job):
        return COMPUTE if hasattr(job, "forwards") else 0.0

    def layer(self, stage, job):
        return COMPUTE

    def draft_job(self, job):
        return DRAFT

    def conclude(self, place, job):
        return 0.0

    def receive(self, place, message):
        return 0.0

    def speed(self, place, busy):
        return 1.0

    def transfer(self, sender, message):
        return TRANSFER if hasattr(message, "payload") else 0.0

    def latency(self, sender):
        return LATENCY

    def message_bytes(self, sender, message):
        return 1


@pytest.mark.parametrize("name", ["auto", "autoregressive"])
def test_a_trip_takes_what_its_jobs_and_links_do(name: str) -> None:
    events: list[StrategyEvent] = []

    def recorded(request: Request):
        strategy = make_strategy(request.strategy, request.strategy_options)
        handle = strategy.handle
        strategy.handle = lambda event: [events.append(event), *handle(event)][1:]
        return strategy

    stages = [Stage(f"v{i}", StageSpec(i == 0, width=1, vocab_size=9, dtype="uint64")) for i in range(2)]
    node = DraftNode("d0", DraftNodeSpec(width=1, dtype="uint64", num_stages=2), recorded, NoText)
    head = ExactHead(9, np.random.default_rng(1))
    pipeline = VirtualPipeline(node, head, stages, [ExactStage(0), ExactStage(1)], EvenCosts())
    options = {"segment_rows": 1} if name == "auto" else {}
    request = Request("s", (1, 2, 3), SamplingParams(), 6, strategy=name, strategy_options=options)
    pipeline.start(request, time=100.0)
    pipeline.run()
    assert isinstance(pipeline.outputs[-1].output, Finished)
    least = 2 * COMPUTE + 3 * (TRANSFER + LATENCY)
    (prefilled,) = [event for event in events if isinstance(event, Prefilled)]
    computed = (StageTime(3, COMPUTE),) * 2
    assert prefilled.trips == (PipelineTrip(3, least, computed),)
    verified = [event.trip for event in events if isinstance(event, Verified)]
    assert verified
    assert all(trip is not None and trip.rows == 1 for trip in verified)
    for trip in verified:
        assert [(time.rows, time.seconds) for time in trip.stage_times] == [(1, COMPUTE)] * 2
        assert trip.seconds == pytest.approx(least + sum(time.waited for time in trip.stage_times))
    assert min(trip.seconds for trip in verified) == least, "one that waits for nothing"
    layers = [event for event in events if isinstance(event, Layer)]
    assert all(layer.seconds == DRAFT for layer in layers)
    assert bool(layers) == (name == "auto")
