"""Runs that begin with earlier answers: by replay as on the virtual clock, and each from the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.lookup.answer_store import OWN_TENANT, EndedAnswer
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.run_backends import make_run_backend
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.scenario import read_scenario
from tests.testbed.conftest import ScenarioFile


def test_replay_and_the_virtual_clock_agree(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    models = ModelSet.load("bundled", ("ngram",))
    scenario = read_scenario(scenario_file(pair={"drafter": "ngram"}))
    (case,) = cases(scenario, tmp_path)
    prompt, sampling = models.encode("A box holds 12 eggs. How many eggs are in 5 boxes?"), SamplingParams()
    path = models.path_source(tmp_path).path(prompt, sampling, 24, models.eos)
    answer = EndedAnswer.of(OWN_TENANT, prompt, path.tokens[path.prompt_tokens :].tolist())
    runs = tuple(
        Run(f"{method}{number}", method, (), case.emulation_of("flowspec"), 0, 128)
        for number in range(2)
        for method in ("flowspec", "naive_pp")
    )
    task = Task(prompt, sampling, 24, runs)
    found = {
        (clock, len(earlier)): [
            record.to_dict() for _, record, _ in backend.measure(replace(task, earlier=earlier))
        ]
        for clock, backend in (
            (clock, make_run_backend(clock, models, tmp_path)) for clock in ("replay", "virtual")
        )
        for earlier in ((), (answer,))
    }
    for count in (0, 1):
        records = found["replay", count]
        assert records == found["virtual", count]
        assert records[:2] == records[2:], "no run leaves an answer to the next one"
    without, beginning = (found["replay", count][1]["accepted_per_round"] for count in (0, 1))
    assert len(beginning) < len(without)
