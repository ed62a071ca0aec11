"""Benchmarks with every kind of drafter, and what each is priced by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowedge
from flowedge.core.errors import BadRequestError
from flowedge.engine.jobs import ExtendDraft, GrowDraft
from flowedge.planning.memory_fit import draft_node_parts, stage_parts
from flowedge.planning.profile.model import (
    BlockSize,
    Eagle3Size,
    EagleSize,
    NGramSize,
    RecallSize,
    SmallModelSize,
)
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import LOOKUP_S, ProfileCosts
from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.emulation.emulate import emulated_drafter
from flowedge_testbed.plan import cases
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import read_scenario
from tests.drafting.block_files import save_block_head
from tests.drafting.eagle3_files import save_eagle3_head
from tests.drafting.parallel_files import save_parallel_head
from tests.support.session_jobs import batch_of
from tests.testbed.conftest import ScenarioFile, results

ITSELF = str(Path(flowedge.__file__).parent / "bundled" / "model")  # a language model with the same tokenizer


def runs(scenario: Path, out: Path, clock: str, drafter: tuple[str, ...]) -> list[dict[str, Any]]:
    run_bench(
        BenchOptions(scenario=scenario, out=out, clock=clock, drafter=drafter, processes=1), BenchProgress()
    )
    content = results(out)
    assert content["outputs_differ"] == []
    found: list[dict[str, Any]] = content["runs"]
    return found


TREES_AND_CHAINS = ["naive_pp", "flowspec", "pipedec", "pipeinfer"]
HYBRID = ("bundled", "recall", "ngram")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("drafter", "temperature", "strategies", "tokens"),
    [
        (("ngram",), 0.0, ["flowspec"], 8),
        (HYBRID, 1.0, ["pipeinfer"], 8),
        ((ITSELF,), 0.0, ["naive_pp"], 8),
        pytest.param(("ngram",), 0.0, TREES_AND_CHAINS, 12, marks=pytest.mark.proof),
        pytest.param(HYBRID, 1.0, TREES_AND_CHAINS, 12, marks=pytest.mark.proof),
        pytest.param((ITSELF,), 0.0, TREES_AND_CHAINS, 12, marks=pytest.mark.proof),
    ],
)
def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: ScenarioFile,
    tmp_path: Path,
    drafter: tuple[str, ...],
    temperature: float,
    strategies: list[str],
    tokens: int,
) -> None:
    scenario = scenario_file(strategies=strategies, temperatures=[temperature], max_new_tokens=tokens)
    replayed, computed = [runs(scenario, tmp_path / clock, clock, drafter) for clock in ("replay", "virtual")]
    assert replayed == computed
    if drafter == (ITSELF,):
        lengths = {run["method"]: run["acceptance_length"] for run in replayed}
        assert lengths["naive_pp"] > 4, "a drafter that is the target is right in all it proposes"


def test_replay_keeps_what_a_pipeline_of_any_length_taps(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    agx = "agx-orin-64gb"
    scenario = scenario_file(
        strategies=["autoregressive", "flowspec"],
        sweep={"stages": [1, 2, 4]},
        # All rows come back, with everything.
        emulated=[{"model": "llama2-7b", "kept_taps": False}],
        verification="draft-node",
        devices={"draft_node": agx, "stages": {"device": agx, "count": 1}},
        max_new_tokens=8,
    )
    drafter = (str(head(tmp_path)), "ngram")
    replayed, computed = [runs(scenario, tmp_path / clock, clock, drafter) for clock in ("replay", "virtual")]
    assert replayed == computed
    found = [run["link_bytes"] for run in replayed if run["method"] == "autoregressive"]
    # Of 32 layers 2, 16 and 29 are tapped; the 8 that supply the tokens have their taps elsewhere.
    wider = [[sent[f"v{i + 1}"] / sent["v1"] for i in range(len(sent) - 2)] for sent in found]
    for ratios, expected in zip(wider, ([1], [1, 4 / 2], [1, 1, 3 / 2, 4 / 2]), strict=True):
        assert ratios == pytest.approx(expected, rel=0.01)


def test_kept_taps_are_replayed_only(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    drafter, sent = (str(head(tmp_path)), "ngram"), []
    for kept in (False, True):
        scenario = scenario_file(
            strategies=["naive_pp"],
            emulated=[{"model": "llama2-7b", "kept_taps": kept}],
            verification="draft-node",
        )
        sent += runs(scenario, tmp_path / str(kept), "replay", drafter)
    with_rows, apart = sent
    assert apart["acceptance_length"] == with_rows["acceptance_length"]
    stages = [link for link in apart["link_bytes"] if link.startswith("v")]
    assert all(apart["link_bytes"][link] < with_rows["link_bytes"][link] for link in stages)
    with pytest.raises(BadRequestError, match="kept_taps is for --clock replay: on the virtual clock"):
        runs(scenario, tmp_path / "virtual", "virtual", drafter)


def head(directory: Path) -> Path:
    """A random EAGLE-3 head for the bundled model."""
    return save_eagle3_head(directory / "head", hidden=256, vocab=4096, draft_vocab=1000)


def emulation(scenario_file: ScenarioFile) -> PipelineProfile:
    path = scenario_file()
    return cases(read_scenario(path), path.parent)[0].emulation


def test_lookups_cost_next_to_nothing_and_a_hybrid_the_sum(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    extend = batch_of(ExtendDraft("s", None, np.zeros(3, dtype=np.int64)))
    index = np.arange(1, 5)
    layer = GrowDraft("s", 1, index, index - 1, index, 10, None, None)
    grow = batch_of(layer)
    eagle, lookup = base.drafter, NGramSize(kind="ngram")
    assert isinstance(eagle, EagleSize)
    alone = ProfileCosts(base)
    looked_up = ProfileCosts(replace(base, drafting=(lookup,)))
    both = ProfileCosts(replace(base, drafting=(eagle, lookup)))
    assert looked_up.draft_job(grow) == LOOKUP_S
    assert looked_up.draft_job(extend) == 0
    assert both.draft_job(grow) == pytest.approx(alone.draft_job(grow) + LOOKUP_S)
    assert both.draft_job(extend) == pytest.approx(alone.draft_job(extend))
    recall = ProfileCosts(replace(base, drafting=(eagle, RecallSize(kind="recall"))))
    read_s = 2 * 1024 * base.model.hidden * base.model.stored_bytes / base.draft_node.bytes_per_s
    assert recall.draft_job(grow) == pytest.approx(alone.draft_job(grow) + read_s)
    true_rows = batch_of(replace(layer, next_tokens=np.zeros(3, dtype=np.int64)))
    learning = both.draft_job(true_rows) - alone.draft_job(true_rows) - LOOKUP_S
    assert 0 < learning < LOOKUP_S, "what is drawn passes through the LM head with the nodes"
    assert alone.draft_job(grow) > 10 * LOOKUP_S


def test_memory_of_a_hybrid_counts_what_is_shared_once(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    alone = draft_node_parts(base, 1000)
    lookup = NGramSize(kind="ngram")
    looked_up = draft_node_parts(replace(base, drafting=(lookup,)), 1000)
    both = draft_node_parts(replace(base, drafting=(base.drafter, lookup)), 1000)
    assert "drafter" in alone and not any(name.startswith("drafter") for name in looked_up)
    assert sum(both.values()) == pytest.approx(sum(alone.values()) + looked_up["n-grams of 1000 tokens"])
    assert looked_up["LM head"] == alone["LM head"]
    recalled = draft_node_parts(replace(base, drafting=(base.drafter, RecallSize(kind="recall"))), 1000)
    errors = 1000 * 3 * base.model.hidden * base.model.stored_bytes
    assert sum(recalled.values()) == pytest.approx(sum(alone.values()) + errors)


def test_a_pair_is_priced_by_its_kinds(tmp_path: Path) -> None:
    model = library.model("llama2-7b")
    eagle, small = model.drafters["eagle"], model.drafters["small_lm"]
    lookup = NGramSize(kind="ngram")
    assert isinstance(small, SmallModelSize)
    assert emulated_drafter(model, None, ("bundled",)) == (eagle, ())
    assert emulated_drafter(model, "small_lm", ("bundled",)) == (small, ())
    assert emulated_drafter(model, None, ("ngram",)) == (eagle, (lookup,))
    assert emulated_drafter(model, None, ("bundled", "ngram")) == (eagle, (eagle, lookup))
    recall = RecallSize(kind="recall")
    assert emulated_drafter(model, None, ("bundled", "recall")) == (eagle, (eagle, recall))
    assert emulated_drafter(model, None, ("bundled", "ngram", "recall")) == (eagle, (eagle, lookup, recall))
    assert emulated_drafter(model, None, (ITSELF,)) == (small, ())
    assert emulated_drafter(model, None, ("bundled", ITSELF)) == (eagle, (eagle, small))
    with pytest.raises(BadRequestError, match="no drafter 'other'; it has eagle, small_lm"):
        emulated_drafter(model, "other", ("bundled",))
    bare = model.model_copy(update={"drafters": {"eagle": eagle}})
    with pytest.raises(BadRequestError, match="no small_lm"):
        emulated_drafter(bare, None, (ITSELF,))


def test_an_eagle3_head_is_priced_as_one(tmp_path: Path) -> None:
    model, drafter = library.model("llama3.1-70b"), str(head(tmp_path))
    eagle, eagle3 = model.drafters["eagle"], model.drafters["eagle3"]
    assert emulated_drafter(model, None, (drafter,)) == (eagle3, ())
    assert emulated_drafter(model, "eagle", (drafter,)) == (eagle3, ()), "no other has its rows"
    assert emulated_drafter(model, "eagle", (drafter, "ngram")) == (eagle, (eagle3, NGramSize(kind="ngram")))
    bare = model.model_copy(update={"drafters": {"eagle": eagle}})
    with pytest.raises(BadRequestError, match="no eagle3 among its drafters"):
        emulated_drafter(bare, None, (drafter,))


def test_heads_without_a_price(tmp_path: Path) -> None:
    model = library.model("llama2-7b")
    save_parallel_head(tmp_path / "peagle", hidden=32, vocab=100)
    for name in ("dflash2", "dspark"):
        save_block_head(tmp_path / name, name, hidden=32, vocab=100)
    size, _ = emulated_drafter(model, None, (str(tmp_path / "dspark"),))
    assert isinstance(size, BlockSize) and size.markov_rank == 6
    for name in ("peagle", "dflash2"):
        with pytest.raises(BadRequestError, match="P-EAGLE and DFlash2 heads have no price in emulations"):
            emulated_drafter(model, None, (str(tmp_path / name),))
    save_block_head(tmp_path / "jetspec", "jetspec", hidden=32, vocab=100, pass_depths=2)
    with pytest.raises(BadRequestError, match=r"pass_depths 2\) have no price"):
        emulated_drafter(model, None, (str(tmp_path / "jetspec"),))


def test_memory_of_an_eagle3_head(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    eagle3 = Eagle3Size(kind="eagle3", draft_vocab=1000)
    with_eagle, with_eagle3 = (
        draft_node_parts(made, 1000) for made in (base, replace(base, drafting=(eagle3,)))
    )
    # One more hidden state for fc, twice the inputs of q, k and v, and an LM head of its own; fp16.
    more = 4096 * (4096 + 3 * 4096 + 1000) * 2
    assert with_eagle3["drafter"] - with_eagle["drafter"] == more
    assert with_eagle3["activations"] == 512 * 4 * 4096 * 2, "rows are wider than what is computed"
    stages = [stage_parts(replace(base, drafter=eagle3), stage, 1000)["activations"] for stage in range(4)]
    assert stages == [512 * width * 2 for width in (11008, 11008, 3 * 4096, 4 * 4096)]
