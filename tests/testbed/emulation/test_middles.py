"""Middle models on the testbed: costs, reports, and equality of replay and virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.messages import Credit
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.profile.model import LayerSize, SmallModelSize
from flowedge.planning.profile_costs import HEADER_BYTES, ProfileCosts
from flowedge.planning.roofline import LOGIT_BYTES
from flowedge.planning.virtual_pipeline import device_of
from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.emulation.emulate import MiddleProfile
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.scenario import read_scenario
from tests.planning.test_profile_costs import BYTES_PER_S, DEVICE, LINK, OVERHEAD, emulation, forward
from tests.support.session_jobs import batch_of
from tests.support.truncated import first_layers
from tests.testbed.conftest import results

SIZE = SmallModelSize(kind="small_lm", layers=3, hidden=2, intermediate=6, heads=1, kv_heads=1, vocab=50)
MIDDLE = MiddleProfile(SIZE, (DEVICE,), (LINK.model_copy(update={"latency_ms": 7}),))
DEVICES = {
    "draft_node": "orin-nano-8gb",
    "stages": {"device": "orin-nano-8gb", "count": 2},
    "middles": ["orin-nano-8gb"],
}
EMULATED = [{"model": "llama2-7b", "quant": "int4", "middles": ["tiny_lm"]}]


def test_a_middle_model_pays_for_its_layers_and_its_head() -> None:
    costs, layer = ProfileCosts(emulation(middles=(MIDDLE,))), LayerSize.of(SIZE)
    one = (layer.weights * 2 + 11 * layer.kv_bytes_per_row) / BYTES_PER_S + 4 * 11 * 2 / 10_000 + OVERHEAD
    assert costs.layer(device_of(1), batch_of(forward(1, 10))) == pytest.approx(one)
    head = (50 * 2 * 2 + 2 * LOGIT_BYTES * 50) / BYTES_PER_S + OVERHEAD
    assert costs.stage_job(device_of(1), batch_of(forward(1, 10))) == pytest.approx(3 * one + head)
    assert costs.latency(device_of(1)) == pytest.approx(0.007)
    assert costs.latency(-1) == pytest.approx(0.002), "the draft node's own link"
    assert costs.transfer(device_of(1), Credit("s")) == pytest.approx(HEADER_BYTES / BYTES_PER_S)


def test_a_divided_middle_model_pays_for_the_layers_of_each_device() -> None:
    links = MIDDLE.links * 2
    costs = ProfileCosts(emulation(middles=(replace(MIDDLE, devices=(DEVICE, DEVICE), links=links),)))
    first, last = device_of(1), device_of(2)
    layer, job = costs.layer(first, batch_of(forward(1, 10))), batch_of(forward(1, 10))
    assert costs.stage_job(first, job) == pytest.approx(2 * layer)
    head = (50 * 2 * 2 + 2 * LOGIT_BYTES * 50) / BYTES_PER_S + OVERHEAD
    assert costs.stage_job(last, job) == pytest.approx(layer + head)
    assert (costs.row_bytes(first), costs.row_bytes(last)) == (2 * 2, 0), "hidden states, then token ids"


def test_it_has_to_fit_its_device() -> None:
    large = replace(MIDDLE, size=SIZE.model_copy(update={"hidden": 1 << 14, "intermediate": 1 << 14}))
    with pytest.raises(CapacityError, match="middle model 1 does not fit on slow"):
        require_fit(emulation(middles=(large,)), 10)


def with_middle(scenario_file: Callable[..., Path], directory: str, **changes: Any) -> Path:
    content = {
        "pair": {"middles": [directory]},
        "devices": DEVICES,
        "emulated": EMULATED,
        "strategies": ["autoregressive", "pipespec"],
        **changes,
    }
    return scenario_file(**content)


def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: Callable[..., Path], pair: ModelSet, tmp_path: Path
) -> None:
    directory = first_layers(tmp_path / "middle", 2)
    middle = LanguageModel.load(Checkpoint(directory), pair.head.vocab_size, pair.head.weight.dtype)
    scenario = with_middle(
        scenario_file, str(directory), temperatures=[1], noise=["plain"], max_new_tokens=10
    )
    found = {}
    for clock in ("replay", "virtual"):
        options = BenchOptions(scenario=scenario, out=tmp_path / clock, clock=clock, processes=1)
        run_bench(options, BenchProgress(), replace(pair, middles=(middle,)))
        found[clock] = results(tmp_path / clock)
    assert found["replay"]["runs"] == found["virtual"]["runs"]
    assert found["replay"]["outputs_differ"] == []
    alone, pipespec = found["replay"]["runs"]
    assert set(alone["use"]) == {"d0", "v1", "v2"}, "it is not used"
    assert set(pipespec["use"]) == {"d0", "v1", "v2", "m1"}
    assert pipespec["use"]["m1"]["busy"] > 0
    assert pipespec["link_bytes"]["m1"] > 0
    assert len(pipespec["rollbacks"]) == 2
    assert sum(pipespec["rollbacks"]) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"emulated": [{"model": "llama2-7b", "quant": "int4"}]}, "emulated.middles 0 sizes"),
        ({"emulated": [{**EMULATED[0], "middles": ["eagle"]}]}, "no small_lm 'eagle'"),
        (
            {"devices": {**DEVICES, "middles": [["orin-nano-8gb"] * 3]}},
            "2 layers cannot be split over 3 stages",
        ),
        ({"clock": "real", "hosts": {"draft_node": "a:1", "stages": ["b:1"]}}, "hosts.middles is for 0"),
    ],
)
def test_what_cannot_be_priced_is_refused(
    scenario_file: Callable[..., Path], changes: dict[str, Any], said: str
) -> None:
    scenario = read_scenario(with_middle(scenario_file, "anything", **changes))
    with pytest.raises(BadRequestError, match=said):
        cases(scenario, Path())
