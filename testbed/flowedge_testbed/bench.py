"""`flowedge bench`: plans a scenario, carries it out, and writes results, report and plots."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise
from flowedge_testbed.bounds.bounds import all_bounds
from flowedge_testbed.bounds.tree_coverage import TreeCoverage
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced.clock import why_loopback
from flowedge_testbed.paced.timings import ScheduleAccuracy
from flowedge_testbed.plan import Case, Plan, Run, Task, by_setup, cases, make_plan
from flowedge_testbed.profiles import library
from flowedge_testbed.prompts import OWN, Dataset, dataset_files, read_dataset
from flowedge_testbed.provenance import code_digest, git_revision, versions
from flowedge_testbed.replay.path_reach import CoverageStore
from flowedge_testbed.report.charted import charted
from flowedge_testbed.report.document import write_report
from flowedge_testbed.results import differing_outputs, entries, write_json
from flowedge_testbed.run_backends import LIVE, check_clock
from flowedge_testbed.scenario import Scenario, read_scenario
from flowedge_testbed.workers import FinishedTask, WorkerSettings, carry_out_all, read_record, unfinished


@dataclass(frozen=True)
class BenchOptions:
    """The command line; None leaves the scenario's value.

    Attributes:
        data: directory of the datasets' files; processes: how many work at once.
    """

    scenario: Path
    out: Path
    clock: str | None = None
    quick: bool = False
    strategies: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    temperatures: tuple[float, ...] | None = None
    noise: tuple[Noise, ...] | None = None
    samples: int | None = None
    model: str | None = None
    drafter: tuple[str, ...] | None = None
    middles: tuple[str, ...] | None = None
    data: Path | None = None
    processes: int = 2


class BenchProgress:
    """Told how far a benchmark is; does nothing by itself."""

    def say(self, line: str) -> None:
        """Something a person should know."""

    def begin(self, total: int, finished: int) -> None:
        """So many runs in all, so many finished before."""

    def advance(self, runs: int) -> None:
        """Runs have ended."""


def overridden(scenario: Scenario, options: BenchOptions) -> Scenario:
    """The scenario with the command line's values in place of its own. BadRequestError for wrong ones."""
    changed = scenario.quickened() if options.quick else scenario
    content = changed.model_dump()
    if options.datasets is not None:
        unknown = sorted(set(options.datasets) - set(scenario.datasets))
        if unknown:
            raise BadRequestError(
                f"no dataset {', '.join(unknown)} in the scenario; it has {', '.join(scenario.datasets)}"
            )
        content["datasets"] = {name: scenario.datasets[name] for name in options.datasets}
    given: dict[str, Any] = {
        "clock": options.clock,
        "strategies": options.strategies,
        "temperatures": options.temperatures,
        "noise": options.noise,
        "samples": options.samples,
    }
    content.update({name: value for name, value in given.items() if value is not None})
    pair = {"model": options.model, "drafter": options.drafter, "middles": options.middles}
    content["pair"].update({name: value for name, value in pair.items() if value is not None})
    return Scenario.checked(content, "the command line")


def run_bench(options: BenchOptions, progress: BenchProgress, pair: ModelSet | None = None) -> Path:
    """Carry out a scenario; returns the report's path. Finished runs in the output directory are kept."""
    started = time.time()
    scenario = overridden(read_scenario(options.scenario), options)
    check_clock(scenario.clock)
    beside = options.scenario.parent
    all_cases = cases(scenario, beside)
    loaded = pair if pair is not None else _load_pair(scenario)
    datasets = _datasets(scenario, options.data or beside, loaded, progress.say)
    hit_rates = library.hit_rates(loaded.checkpoint.fingerprint, loaded.drafter_fingerprint)
    plan = make_plan(scenario, all_cases, datasets, _base(scenario, loaded), hit_rates)
    settings = _worker_settings(scenario, options, plan)
    left = unfinished(plan.tasks, settings)
    if scenario.clock in LIVE:
        left = by_setup(left)
    left_runs = sum(len(task.runs) for task in left)
    options.out.mkdir(parents=True, exist_ok=True)
    _say_network(scenario, progress.say)
    progress.begin(plan.num_runs, plan.num_runs - left_runs)
    processes = 1 if scenario.clock in LIVE else options.processes
    began = time.perf_counter()
    done: list[FinishedTask] = []
    with closing(carry_out_all(left, settings, processes, loaded)) as finished:
        for task in finished:
            done.append(task)
            progress.advance(task.runs)
    worked = time.perf_counter() - began
    results = _results(scenario, options, plan, all_cases, datasets, loaded)
    write_json(options.out / "results.json", results)
    write_json(options.out / "run.json", _run_facts(scenario, processes, plan, done, started, worked))
    if done and "schedule" in done[-1].facts:
        progress.say(ScheduleAccuracy(**done[-1].facts["schedule"]).line())
    progress.say("writing the report and plots")
    return write_report(scenario, results, plan, loaded, options.out)


def _load_pair(scenario: Scenario) -> ModelSet:
    names = scenario.pair
    return ModelSet.load(names.model, names.drafter, names.middles)


def _worker_settings(scenario: Scenario, options: BenchOptions, plan: Plan) -> WorkerSettings:
    """What is done and kept; of what cannot be had a second time, the charts are drawn from kept traces."""
    kept = charted(scenario, plan).runs if scenario.clock in LIVE else ()
    traced = frozenset(run.key for run in kept)
    names = scenario.pair
    return WorkerSettings(
        names.model, names.drafter, scenario.clock, options.out, traced, tuple(names.middles)
    )


def _say_network(scenario: Scenario, say: Callable[[str], None]) -> None:
    if scenario.clock == "paced" and (reason := why_loopback()) is not None:
        say(f"agents share loopback, and wait in place of links: {reason}")


def _datasets(
    scenario: Scenario, directory: Path, pair: ModelSet, say: Callable[[str], None]
) -> list[Dataset]:
    files, missing = dataset_files(scenario.datasets, directory)
    if OWN in files:
        say(
            f"none of the scenario's datasets is in {directory} (--data DIR names another place): "
            "running on the project's own prompts"
        )
    elif missing:
        say(f"not in {directory}, and left out: {', '.join(missing)}")
    room = pair.max_positions - scenario.max_new_tokens
    return [read_dataset(name, file, scenario.samples, room, pair.encode) for name, file in files.items()]


def _base(scenario: Scenario, pair: ModelSet) -> dict[str, Any]:
    """What every run of this process depends on, besides its own settings."""
    return {
        "code": code_digest(),
        "versions": versions(),
        "clock": scenario.clock,
        "model": pair.checkpoint.fingerprint,
        "drafter": pair.drafter_fingerprint,
        **({"middles": pair.middle_fingerprints} if pair.middles else {}),
        **({"namespaces": why_loopback() is None} if scenario.clock == "paced" else {}),
    }


def _results(
    scenario: Scenario,
    options: BenchOptions,
    plan: Plan,
    all_cases: Sequence[Case],
    datasets: Sequence[Dataset],
    pair: ModelSet,
) -> dict[str, Any]:
    records = {}
    for task in plan.tasks:
        for run in task.runs:
            record = read_record(options.out, run.key)
            if record is None:
                raise BadRequestError(f"run {run.key} is missing from {options.out}; start it again")
            records[run.key] = record
    reaches = CoverageStore(pair, options.out)

    def reach_of(task: Task, run: Run) -> TreeCoverage:
        return reaches.reach(task.prompt, task.sampling, task.max_new_tokens, run.noise)

    return {
        "scenario": scenario.name,
        "clock": scenario.clock,
        "quick": options.quick,
        "settings": scenario.model_dump(exclude={"name", "title", "clock", "quick", "report"}),
        "versions": versions(),
        "git": git_revision(),
        "code": code_digest(),
        "pair": {
            "model": pair.checkpoint.fingerprint,
            "drafter": pair.drafter_fingerprint,
            **({"middles": pair.middle_fingerprints} if pair.middles else {}),
        },
        "datasets": {
            dataset.name: {"prompts": len(dataset.prompts), "left_out_as_too_long": dataset.left_out}
            for dataset in datasets
        },
        "profiles": _profiles(all_cases),
        "outputs_differ": differing_outputs(plan.cells, records),
        "runs": entries(plan.cells, records, all_bounds(plan.tasks, records, reach_of)),
    }


def _profiles(all_cases: Sequence[Case]) -> dict[str, Any]:
    """The numbers of each profile, at the first point of the sweep."""
    profiles: dict[str, Any] = {}
    for case in all_cases:
        profiles.setdefault(case.profile, case.setup.sizes())
    return profiles


def _run_facts(
    scenario: Scenario,
    processes: int,
    plan: Plan,
    done: Sequence[FinishedTask],
    started: float,
    worked: float,
) -> dict[str, Any]:
    how = "measured" if scenario.clock in LIVE else "simulated"
    tokens = sum(task.tokens for task in done)
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": time.time() - started,
        "seconds_running": worked,
        "runs": plan.num_runs,
        "runs_finished_before": plan.num_runs - sum(task.runs for task in done),
        f"{how}_tokens": tokens,
        f"{how}_tokens_per_wall_s": tokens / worked if worked > 0 else None,
        "processes": processes,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        **(done[-1].facts if done else {}),
    }
