"""A drafter over a part of the vocabulary, or in fewer bits: what it costs, and what really drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.drafting.drafter import Frontier
from flowedge.engine.jobs import GrowDraft
from flowedge.planning.memory_fit import draft_node_parts
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.roofline import head_s, product_s
from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.emulation.draft_share import WHOLE, DraftShare, priced_tokens
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import read_scenario
from tests.drafting.trees import extend, grow
from tests.support.breadth import dealt
from tests.support.session_jobs import batch_of
from tests.testbed.conftest import ScenarioFile, results

ROOT_LAYER = batch_of(GrowDraft("s", 1, np.array([0]), np.array([-1]), np.array([5]), 10, None, None))


def emulation(scenario_file: ScenarioFile, **emulated: object) -> PipelineProfile:
    path = scenario_file(emulated=[{"model": "llama2-7b", **emulated}])
    return cases(read_scenario(path), path.parent)[0].emulation


@pytest.mark.parametrize(("part", "tokens"), [(0.25, 8000), (1, 32000), (4096, 4096), (10**6, 32000)])
def test_a_part_is_a_share_or_a_number_of_tokens(
    scenario_file: ScenarioFile, part: float, tokens: int
) -> None:
    assert priced_tokens(part, 32000) == tokens
    assert DraftShare.of(emulation(scenario_file, draft_vocabulary=part)) == DraftShare(tokens / 32000)


def test_the_head_of_a_part_is_priced_by_its_tokens(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    device, hidden = base.draft_node, base.model.hidden
    assert DraftShare.of(base) == WHOLE
    for tokens, quant in ((8000, "none"), (8000, "int4"), (32000, "int8")):
        part = replace(base, draft_tokens=tokens, draft_quant=quant)  # type: ignore[arg-type]
        expected = head_s(device, tokens * hidden, tokens, 1, 2, quant)  # type: ignore[arg-type]
        if tokens < base.model.vocab:
            expected += product_s(device, 512 * hidden, 1)
        assert ProfileCosts(part).draft_job(ROOT_LAYER) == pytest.approx(expected)
        assert ProfileCosts(part).draft_job(ROOT_LAYER) < ProfileCosts(base).draft_job(ROOT_LAYER)


def test_measured_times_shrink_as_the_roofline_does() -> None:
    measured, nano = library.device("x86-2core"), library.device("orin-nano-8gb")
    assert measured.measured is not None
    sizes = measured.measured.model_dump(
        include={"hidden", "intermediate", "heads", "kv_heads", "vocab", "dtype"}
    )
    model = library.model("llama2-7b").model_copy(update={**sizes, "layers": 8})
    links = (library.link("gigabit"),) * 2
    whole = PipelineProfile(model, "none", model.drafters["eagle"], measured, (nano,), links, (8,))
    part = replace(whole, draft_tokens=1024)
    computed = [
        ProfileCosts(replace(each, draft_node=measured.model_copy(update={"measured": None})))
        for each in (whole, part)
    ]
    share = computed[1].draft_job(ROOT_LAYER) / computed[0].draft_job(ROOT_LAYER)
    assert share < 1
    found = ProfileCosts(part).draft_job(ROOT_LAYER)
    assert found == pytest.approx(share * ProfileCosts(whole).draft_job(ROOT_LAYER))


def test_memory_counts_the_copy_of_the_head(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    table = base.model.hidden * 2
    whole = draft_node_parts(base, 100)
    part = draft_node_parts(replace(base, draft_tokens=8000), 100)
    assert part["drafter"] - whole["drafter"] == 8000 * table
    assert part["LM head"] == whole["LM head"]
    packed = draft_node_parts(replace(base, draft_quant="int4"), 100)
    layers = whole["drafter"] - 32000 * table
    assert packed["drafter"] == pytest.approx(32000 * table + (layers + 32000 * table) * 0.5625 / 2)


def test_a_device_without_8_bits_drafts_in_none(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    plain = base.draft_node.model_copy(update={"dequantise_gweights_s": None})
    with pytest.raises(BadRequestError, match="drafts in no int8"):
        replace(base, draft_node=plain, draft_quant="int8")


def test_the_real_drafter_proposes_the_same_share(pair: ModelSet) -> None:
    drafter = pair.drafter_for(DraftShare(0.125))
    assert drafter is pair.drafter_for(DraftShare(0.125)) is not pair.drafter
    assert pair.drafter_for(WHOLE) is pair.drafter
    drafter.open("s", 8, 1)
    width = pair.head.hidden_size
    extend(drafter, "s", np.zeros((2, width), np.float32), np.array([4000, 225]))
    layer = grow(drafter, "s", 1, Frontier([0], [-1], [225]), 4096)
    drafter.close("s")
    ids = library.token_ranking(pair.checkpoint.fingerprint).ids[:512]
    assert sorted(layer.tokens[0].tolist()) == sorted({*ids, 4000})


@pytest.mark.parametrize("strategy", dealt(["auto", "naive_pp"], {"naive_pp"}.__contains__))
def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: ScenarioFile, tmp_path: Path, strategy: str
) -> None:
    scenario = scenario_file(
        strategies=[strategy],
        temperatures=[1.0],
        emulated=[{"model": "llama2-7b", "draft_vocabulary": 0.1, "draft_quant": "int8"}],
    )
    found = []
    for clock in ("replay", "virtual"):
        run_bench(
            BenchOptions(scenario=scenario, out=tmp_path / clock, clock=clock, processes=1), BenchProgress()
        )
        found.append(results(tmp_path / clock))
    assert found[0]["runs"] == found[1]["runs"]
    assert not found[0]["outputs_differ"]
