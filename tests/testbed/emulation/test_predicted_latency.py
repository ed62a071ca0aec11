"""The papers' models of latency, in numbers, and beside what a replay measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.emulation.level_times import LevelTimes
from flowedge_testbed.emulation.predicted_latency import (
    pipedec_latency,
    plain_latency,
    predicted_latency,
)
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.record import RunRecord
from flowedge_testbed.scenario import read_scenario
from testbed.tools.hit_rates import hit_rate
from testbed.tools.sample_runs import SCENARIO, SampleRuns


@pytest.fixture(scope="module")
def table1() -> PipelineProfile:
    return cases(read_scenario(SCENARIO), SCENARIO.parent)[0].emulation


def test_a_token_alone_passes_through_every_node() -> None:
    assert plain_latency([0.06] * 14, [0.01] * 13) == pytest.approx(14 * 0.06 + 13 * 0.01)


def test_a_timestep_is_its_slowest_node_and_transfer_or_the_draft() -> None:
    computing, transfers = [0.06, 0.1, 0.08], [0.01, 0.02]
    assert pipedec_latency(0.05, computing, transfers, 1.3) == pytest.approx(1.3 * 0.1 + 0.02)
    assert pipedec_latency(0.2, computing, transfers, 1.3) == pytest.approx(0.2)


def test_a_group_takes_the_time_of_its_stages_and_of_the_links_between_them(table1: PipelineProfile) -> None:
    each, pairs = LevelTimes(table1, 4), LevelTimes(table1, 2)
    assert (each.groups, pairs.groups) == ([(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 2), (2, 4)])
    stages, links = each.computing(16), each.arriving(16)[1:]
    expected = [stages[0] + links[0] + stages[1], stages[2] + links[2] + stages[3]]
    assert pairs.computing(16) == pytest.approx(expected)
    assert pairs.sending(16) == [each.sending(16)[1], each.sending(16)[3]]


def test_the_place_that_draws_takes_the_time_of_a_draw(table1: PipelineProfile) -> None:
    here, there = (LevelTimes(replace(table1, verification=at), 4) for at in (DRAFT_NODE, LAST_STAGE))
    assert here.drawing() > 0 == there.drawing()
    assert there.computing(1)[-1] == pytest.approx(here.computing(1)[-1] + here.drawing())
    assert there.sending(16)[-1] < here.sending(16)[-1], "the root's row alone"


def test_plain_decoding_takes_as_long_as_predicted(pair: ModelSet, tmp_path) -> None:
    runs = SampleRuns(pair, "none", tmp_path, 1, tmp_path)
    emulation = runs.emulation("llama2-7b-fp16", "autoregressive")
    (record,) = runs.records(emulation, "autoregressive", ())
    predicted = predicted_latency(emulation, "autoregressive", {}, None)
    assert predicted is not None and predicted.with_misses is None
    assert predicted.without_misses == pytest.approx(per_token(record), rel=0.01)


def test_pipedec_takes_longer_than_predicted_by_its_misses(pair: ModelSet, tmp_path) -> None:
    runs = SampleRuns(pair, "none", tmp_path, 1, tmp_path)
    emulation = runs.emulation("llama2-7b-fp16", "pipedec")
    (record,) = runs.records(emulation, "pipedec", ())
    predicted = predicted_latency(emulation, "pipedec", {}, hit_rate([record]))
    assert predicted is not None and predicted.with_misses is not None
    assert predicted.without_misses < per_token(record)
    assert predicted.with_misses == pytest.approx(per_token(record), rel=0.15)


def test_other_methods_have_no_model(table1: PipelineProfile) -> None:
    assert predicted_latency(table1, "naive_pp", {}, 0.5) is None
    assert predicted_latency(table1, "specpipe", {"step_levels": 2}, 0.5) is None
    assert predicted_latency(table1, "specpipe", {}, 0.5) is not None


def per_token(record: RunRecord) -> float:
    return record.decode_s / (record.new_tokens - 1)
