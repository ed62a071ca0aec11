"""SpecPipe's lossy verification: its rules, and what they make of an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE
from flowedge.core.sampling import SamplingParams
from flowedge_testbed.lossy.lossy_specpipe import lossy_run
from flowedge_testbed.lossy.rules import Candidates, lossless, relaxed, strict
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.runs import Run, Task
from testbed.tools.sample_runs import SampleRuns

PROBABILITIES = np.array([0.05, 0.5, 0.3, 0.15])


def candidates(**log_probs: float) -> Candidates:
    tokens = [int(name.removeprefix("t")) for name in log_probs]
    return Candidates(np.array(tokens), np.array(list(log_probs.values())))


def test_relaxed_takes_the_candidate_that_the_target_finds_likeliest() -> None:
    assert relaxed(PROBABILITIES, candidates(t0=-0.1, t3=-2.0)) == 3
    assert lossless(PROBABILITIES, candidates(t0=-0.1)) == 1


def test_strict_takes_the_drafters_choice_within_the_top_p_set() -> None:
    assert strict(0.7)(PROBABILITIES, candidates(t3=-0.1, t2=-0.5, t1=-2.0)) == 2, "the set is 1 and 2"
    assert strict(0.5)(PROBABILITIES, candidates(t3=-0.1, t2=-0.5)) == 1, "the set is 1, which nobody drafted"


def test_a_rule_changes_the_answer_and_its_time(pair: ModelSet, tmp_path: Path) -> None:
    place = SampleRuns(pair, "none", tmp_path, 1, tmp_path).emulation("llama2-7b-fp16", "specpipe")
    place = replace(place, verification=DRAFT_NODE)
    run = Run("k", "specpipe", (("width", 4),), place, 0, 128)
    task = Task(pair.encode("Write a poem about rain."), SamplingParams(), 32, (run,))
    found = {
        name: lossy_run(pair, task, run, rule)
        for name, rule in {"lossless": lossless, "strict": strict(0.9), "relaxed": relaxed}.items()
    }
    own = {name: draws.own / draws.taken for name, (_, draws) in found.items()}
    assert own["lossless"] == 1 > own["relaxed"]
    assert len(found["relaxed"][0].accepted_per_round) == 1, "no level misses"
    assert found["relaxed"][0].decode_s < found["lossless"][0].decode_s
    assert found["strict"][0].decode_s <= found["lossless"][0].decode_s
    with pytest.raises(BadRequestError, match=r"for specpipe alone, at temperature 0.*this is pipedec"):
        lossy_run(pair, task, replace(run, strategy="pipedec"), relaxed)
