"""Benchmarks with every kind of drafter, and what each is priced by."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowedge
from flowedge.errors import BadRequestError
from flowedge.runtime.jobs import ExtendDraft, GrowDraft
from testbed.bench import BenchOptions, Progress, run_bench
from testbed.costs import LOOKUP_S, ProfileCosts
from testbed.drafter_sizes import emulated_drafter
from testbed.emulation import Emulation
from testbed.memory import draft_node_parts
from testbed.pair import Pair
from testbed.plan import cases
from testbed.profiles import library
from testbed.profiles.model import EagleSize, NGramSize, SmallModelSize
from testbed.scenario import read_scenario
from tests.drafting.eagle3_files import save_eagle3_head

ITSELF = str(Path(flowedge.__file__).parent / "bundled" / "model")  # a language model with the same tokenizer
ScenarioFile = Callable[..., Path]


def runs(scenario: Path, out: Path, clock: str, drafter: str) -> list[dict[str, Any]]:
    run_bench(BenchOptions(scenario=scenario, out=out, clock=clock, drafter=drafter, processes=1), Progress())
    content = json.loads((out / "results.json").read_text())
    assert content["outputs_differ"] == []
    found: list[dict[str, Any]] = content["runs"]
    return found


@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [("ngram", 0.0), ("bundled+ngram", 1.0), (ITSELF, 0.0)],
)
def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: ScenarioFile, tmp_path: Path, drafter: str, temperature: float
) -> None:
    strategies = ["naive_pp", "flowspec", "pipedec", "pipeinfer"]
    scenario = scenario_file(strategies=strategies, temperatures=[temperature])
    replayed, computed = [runs(scenario, tmp_path / clock, clock, drafter) for clock in ("replay", "virtual")]
    assert replayed == computed
    if drafter == ITSELF:
        lengths = {run["method"]: run["acceptance_length"] for run in replayed}
        assert lengths["naive_pp"] > 4, "a drafter that is the target is right in all it proposes"


def emulation(scenario_file: ScenarioFile) -> Emulation:
    path = scenario_file()
    return cases(read_scenario(path), path.parent)[0].emulation


def test_lookups_cost_next_to_nothing_and_a_hybrid_the_sum(scenario_file: ScenarioFile) -> None:
    base = emulation(scenario_file)
    extend = ExtendDraft("s", None, np.zeros(3, dtype=np.int64))
    index = np.arange(1, 5)
    grow = GrowDraft("s", 1, index, index - 1, index, 10, None, None)
    eagle, lookup = base.drafter, NGramSize(kind="ngram")
    assert isinstance(eagle, EagleSize)
    alone = ProfileCosts(base)
    looked_up = ProfileCosts(replace(base, drafting=(lookup,)))
    both = ProfileCosts(replace(base, drafting=(eagle, lookup)))
    assert looked_up.draft_job(grow) == LOOKUP_S
    assert looked_up.draft_job(extend) == 0
    assert both.draft_job(grow) == pytest.approx(alone.draft_job(grow) + LOOKUP_S)
    assert both.draft_job(extend) == pytest.approx(alone.draft_job(extend))
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


def test_a_pair_is_priced_by_its_kinds(tmp_path: Path) -> None:
    model = library.model("llama2-7b")
    eagle, small = model.drafters["eagle"], model.drafters["small_lm"]
    lookup = NGramSize(kind="ngram")
    assert isinstance(small, SmallModelSize)
    assert emulated_drafter(model, None, "bundled") == (eagle, ())
    assert emulated_drafter(model, "small_lm", "bundled") == (small, ())
    assert emulated_drafter(model, None, "ngram") == (eagle, (lookup,))
    assert emulated_drafter(model, None, "bundled+ngram") == (eagle, (eagle, lookup))
    assert emulated_drafter(model, None, ITSELF) == (small, ())
    assert emulated_drafter(model, None, f"bundled+{ITSELF}") == (eagle, (eagle, small))
    with pytest.raises(BadRequestError, match="no drafter 'other'; it has eagle, small_lm"):
        emulated_drafter(model, "other", "bundled")
    bare = model.model_copy(update={"drafters": {"eagle": eagle}})
    with pytest.raises(BadRequestError, match="no small_lm"):
        emulated_drafter(bare, None, ITSELF)


def test_an_eagle3_head_has_no_price(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    save_eagle3_head(tmp_path / "head", hidden=256, vocab=4096, draft_vocab=100)
    with pytest.raises(BadRequestError, match="have no price in the testbed"):
        emulated_drafter(emulation(scenario_file).model, None, f"ngram+{tmp_path / 'head'}")
    with pytest.raises(BadRequestError, match="the testbed has no EAGLE-3 heads"):
        Pair.load("bundled", str(tmp_path / "head"))
