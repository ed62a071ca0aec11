"""Measured times go before the roofline where they hold, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.messages import Prune, Segment
from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftBatch, ExtendDraft, GrowDraft, Verify
from flowedge.planning.measured_costs import read_off
from flowedge.planning.memory_fit import draft_node_parts, stage_parts
from flowedge.planning.profile.device import (
    AddedTimes,
    MeasuredDraftTimes,
    MeasuredTimes,
    SharedCores,
    StrategyTimes,
)
from flowedge.planning.profile.model import LayerSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import HEADER_BYTES, INDEX_BYTES, ProfileCosts
from flowedge.planning.roofline import layer_s
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from tests.planning.test_profile_costs import DEVICE, FLOPS, MODEL, emulation, forward
from tests.support.session_jobs import batch_of

SINGLE = MODEL.model_copy(update={"dtype": "float32"})
DRAFT = MeasuredDraftTimes(extend_ms={1: 5, 3: 7}, grow_ms={1: 11, 10: 20}, root_ms=2)
MEASURED = MeasuredTimes(
    hidden=4, intermediate=10, heads=2, kv_heads=1, vocab=50, dtype="float32", quant="none", cached_rows=10,
    layer_ms={1: 100, 2: 110, 4: 150}, verify_ms={1: 1, 16: 4}, draft=DRAFT,
)  # fmt: skip


def measured_emulation(**changes: object) -> PipelineProfile:
    device = DEVICE.model_copy(update={"measured": MEASURED.model_copy(update=changes)})
    return replace(emulation(model=SINGLE), draft_node=device, stages=(device, DEVICE))


def test_between_points_it_is_linear_and_beyond_them_scaled() -> None:
    table = {1: 100.0, 2: 110.0, 4: 150.0}

    def roofline(rows: int) -> float:
        return 7.0 * rows + 3

    assert read_off(table, 2, roofline) == 110
    assert read_off(table, 3, roofline) == pytest.approx(130)
    assert read_off(table, 8, roofline) == pytest.approx(150 * 59 / 31)
    assert read_off({2: 110.0, 4: 150.0}, 1, roofline) == pytest.approx(110 * 10 / 17)
    with pytest.raises(ValueError, match="without a point"):
        read_off({}, 1, roofline)


def test_a_stage_takes_what_was_measured() -> None:
    made = measured_emulation()
    costs, layer = ProfileCosts(made), LayerSize.of(SINGLE)
    assert costs.layer(0, batch_of(forward(1, 10))) == pytest.approx(0.1)
    assert costs.stage_job(0, batch_of(forward(3, 5))) == pytest.approx(3 * 0.13)
    beyond = 0.15 * layer_s(DEVICE, layer, 8, 8, "none") / layer_s(DEVICE, layer, 4, 4, "none")
    assert costs.layer(0, batch_of(forward(8, 0))) == pytest.approx(beyond, rel=0.05)
    # Rows that were not in the cache when it was measured cost the arithmetic of attention.
    assert costs.layer(0, batch_of(forward(2, 30))) == pytest.approx(0.11 + 4 * 2 * 20 * 4 / FLOPS)
    # The other device has a roofline alone, over weights of four bytes.
    assert costs.layer(1, batch_of(forward(1, 10))) == layer_s(DEVICE, layer, 1, 11, "none")


def test_the_fixed_time_of_a_forward_counts_once_and_attention_by_the_context() -> None:
    costs = ProfileCosts(measured_emulation(forward_ms=7, attention_ms={1: 20, 3: 40}))
    assert costs.stage_job(0, batch_of(forward(1, 10))) == pytest.approx(0.007 + 3 * 0.1)
    assert costs.layer(0, batch_of(forward(1, 0))) == pytest.approx(0.1 - 0.02)
    assert costs.layer(0, batch_of(forward(2, 30))) == pytest.approx(0.11 + 0.03 * 2)
    assert costs.stage_job(1, batch_of(forward(1, 10))) == costs.layer(
        1, batch_of(forward(1, 10))
    )  # of one layer


def test_a_batch_takes_the_time_of_all_rows_and_of_each_session_s_attention() -> None:
    costs = ProfileCosts(measured_emulation(forward_ms=7, attention_ms={1: 20, 3: 40}))
    batch = [forward(1, 30), forward(2, 0), forward(1, 10)]
    # 4 rows take 150 ms, of which 40 * 4 / 3 are attention over 10 rows; each session has its own instead.
    layer = 0.150 - 0.040 * 4 / 3 + 0.020 * 3 + 0.030 * 0 + 0.020 * 1
    assert costs.batch_layer(0, batch) == pytest.approx(layer)
    assert costs.stage_batch(0, batch) == pytest.approx(0.007 + 3 * layer)
    for job in (*batch, forward(9, 77)):
        assert costs.stage_batch(0, [job]) == costs.stage_job(0, batch_of(job))


def test_without_measured_attention_a_batch_reads_the_further_caches() -> None:
    costs = ProfileCosts(measured_emulation())
    read = (30 + 5) * LayerSize.of(SINGLE).kv_bytes_per_row / DEVICE.bytes_per_s
    beyond = 4 * 20 * 4 / FLOPS + 4 * 30 * 4 / FLOPS
    batch = [forward(1, 30), forward(2, 5), forward(1, 40)]
    assert costs.batch_layer(0, batch) == pytest.approx(0.15 + beyond + read)


def test_what_surrounds_computing_is_priced_by_device_and_strategy() -> None:
    own = AddedTimes(
        receive_ms=2, send_ms=3, mib_ms=1024,
        strategies={"auto": StrategyTimes(verified_ms=5, drafted_ms=7)},
    )  # fmt: skip
    made = measured_emulation()
    device = made.stages[0].model_copy(update={"added": own})
    costs = ProfileCosts(replace(made, draft_node=device, stages=(device, made.stages[1])))
    names = np.zeros(1, dtype=np.int64)
    verify = Verify("s", SamplingParams(), np.zeros((1, 4)), names, names, names)
    grow = GrowDraft("s", 1, names, names, names, 1, None, None)
    assert costs.conclude(DRAFT_NODE, batch_of(verify)) == pytest.approx(0.005)
    assert costs.conclude(DRAFT_NODE, batch_of(grow)) == pytest.approx(0.007)
    assert costs.conclude(0, batch_of(forward(1, 0))) == pytest.approx(0.003)
    assert costs.conclude(1, batch_of(forward(1, 0))) == 0
    rows = Segment("s", 0, 0, False, 0, names.repeat(8), names.repeat(8), np.zeros((8, 1)))
    tokens = replace(rows, payload=names.repeat(8).astype(np.int32))
    assert costs.receive(0, tokens) == pytest.approx(0.002)
    assert costs.receive(1, rows) == 0
    assert costs.receive(DRAFT_NODE, rows) == pytest.approx(0.002 + 1.024 * 8 * 4 * 4 / 2**20)


def test_the_strategy_follows_the_draws_of_the_last_stage_when_they_come() -> None:
    own = AddedTimes(
        receive_ms=2, send_ms=0, mib_ms=0, strategies={"auto": StrategyTimes(verified_ms=5, drafted_ms=7)}
    )
    device = DEVICE.model_copy(update={"added": own})
    made = replace(emulation(model=SINGLE), draft_node=device, verification=LAST_STAGE)
    names = np.zeros(1, dtype=np.int64)
    rows = Segment("s", 0, 0, False, 0, names, names, np.zeros((1, 1)), drawn=np.array([3]))
    assert ProfileCosts(made).receive(DRAFT_NODE, rows) == pytest.approx(0.007)
    nothing = replace(rows, payload=np.zeros((0, 1)), drawn=np.array([NO_TOKEN]))
    assert ProfileCosts(made).receive(DRAFT_NODE, nothing) == pytest.approx(0.002)
    assert ProfileCosts(made).receive(DRAFT_NODE, Prune("s", 1, 1, 0, 0, names)) == pytest.approx(0.002)


def test_devices_share_cores_only_where_all_have_the_same_profile() -> None:
    made = measured_emulation()
    host = made.draft_node.model_copy(update={"shared_cores": SharedCores(cores=2, speed=0.75)})
    shared = ProfileCosts(replace(made, draft_node=host, stages=(host, host)))
    assert [shared.speed(0, range(busy)) for busy in (1, 2, 3)] == [1, 0.75, 0.5]
    apart = ProfileCosts(replace(made, draft_node=host, stages=(host, DEVICE)))
    assert apart.speed(0, range(3)) == 1


def test_a_draft_node_takes_what_was_measured() -> None:
    costs = ProfileCosts(measured_emulation())
    none, one = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    features = np.zeros((2, 4), dtype=np.float32)

    def grow(nodes: list[int], extended: int) -> GrowDraft:
        names = np.array(nodes, dtype=np.int64)
        pairs = (features[:extended], names[:1].repeat(extended)) if extended else (None, None)
        return GrowDraft("s", 1, names, names, names, 10, *pairs)

    assert costs.draft_job(batch_of(ExtendDraft("s", features, one.repeat(2)))) == pytest.approx(0.006)
    assert costs.draft_job(batch_of(ExtendDraft("s", features, none))) == 0
    assert costs.draft_job(batch_of(grow([0], 2))) == pytest.approx(0.006 + 0.002)
    assert costs.draft_job(batch_of(grow([0], 0))) == pytest.approx(0.002)
    assert costs.draft_job(batch_of(grow([1, 2, 3, 4], 0))) == pytest.approx(0.014)
    rows = np.arange(6, dtype=np.int64)
    verify = Verify("s", SamplingParams(), features, rows, rows - 1, rows)
    assert costs.draft_job(batch_of(verify)) == pytest.approx(0.002)
    halves = [replace(grow([1, 2], 0), session="s"), replace(grow([1, 2], 0), session="t")]
    assert costs.draft_job(DraftBatch(halves)) == pytest.approx(0.014), "a layer of four nodes"
    mixed = [grow([0], 2), replace(grow([1, 2], 0), session="t")]
    assert costs.draft_job(DraftBatch(mixed)) < costs.draft_job(batch_of(mixed[0])) + costs.draft_job(
        batch_of(mixed[1])
    )
    roots = [grow([0], 0), replace(grow([0], 0), session="t")]
    assert 0.002 <= costs.draft_job(DraftBatch(roots)) <= 0.004


@pytest.mark.parametrize(
    "change", [{"hidden": 8}, {"intermediate": 11}, {"kv_heads": 2}, {"quant": "nf4"}, {"dtype": "float16"}]
)
def test_measurements_of_something_else_are_not_used(change: dict[str, Any]) -> None:
    other, plain = ProfileCosts(measured_emulation(**change)), ProfileCosts(emulation(model=SINGLE))
    assert other.layer(0, batch_of(forward(3, 5))) == plain.layer(0, batch_of(forward(3, 5)))


def test_another_vocabulary_leaves_the_head_to_the_roofline() -> None:
    other, plain = ProfileCosts(measured_emulation(vocab=60)), ProfileCosts(emulation(model=SINGLE))
    rows = np.arange(6, dtype=np.int64)
    job = batch_of(Verify("s", SamplingParams(), np.zeros((6, 4), dtype=np.float32), rows, rows - 1, rows))
    assert other.draft_job(job) == plain.draft_job(job)
    extend = batch_of(ExtendDraft("s", np.zeros((2, 4), dtype=np.float32), rows[:2]))
    assert other.draft_job(extend) == plain.draft_job(extend)


def test_float32_takes_four_bytes_on_the_wire_and_in_memory() -> None:
    none = np.zeros(3, dtype=np.int64)
    segment = Segment("s", 1, 0, False, 0, none, none, np.zeros((3, 4), dtype=np.float32))
    single, half = emulation(model=SINGLE), emulation()
    assert ProfileCosts(single).message_bytes(0, segment) == HEADER_BYTES + 3 * (4 * 4 + INDEX_BYTES)
    assert ProfileCosts(half).message_bytes(0, segment) == HEADER_BYTES + 3 * (4 * 2 + INDEX_BYTES)
    assert single.format_name == "fp32"
    assert sum(stage_parts(single, 0, 10).values()) == 2 * sum(stage_parts(half, 0, 10).values())
    assert sum(draft_node_parts(single, 10).values()) == 2 * sum(draft_node_parts(half, 10).values())
