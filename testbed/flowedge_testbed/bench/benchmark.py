"""A benchmark: plan a scenario, carry it out, and write results, report and plots."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge_testbed.bench.options import BenchOptions, overridden
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.bench.workers import (
    FinishedTask,
    WorkerSettings,
    carry_out_all,
    load_pair,
    unfinished,
    unfinished_load,
)
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.load.load_plan import LoadPlan, LoadTask, make_load_plan
from flowedge_testbed.load.load_results import differing_answers, load_entries
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced.paced_backend import why_loopback
from flowedge_testbed.paced.timings import ScheduleAccuracy
from flowedge_testbed.plan import cases, make_plan
from flowedge_testbed.profiles import library
from flowedge_testbed.prompts import OWN, Dataset, dataset_files, read_dataset
from flowedge_testbed.provenance import code_digest, git_revision, versions
from flowedge_testbed.replay.conversations import Conversations
from flowedge_testbed.replay.path_coverage import CoverageStore, TreeCoverage
from flowedge_testbed.replay.run_bounds import all_bounds
from flowedge_testbed.replay.saved_paths import check_can_save, save_paths
from flowedge_testbed.report.document import write_report
from flowedge_testbed.report.leads import leads_content
from flowedge_testbed.report.load.load_document import write_load_report
from flowedge_testbed.report.load.load_pictures import charted_load, draw_load_pictures
from flowedge_testbed.report.load.load_summary import summarise_load
from flowedge_testbed.report.origin import origin_of
from flowedge_testbed.report.pictures import ChartedRuns, PictureSource, draw_pictures
from flowedge_testbed.report.summary import BenchSummary, summarise
from flowedge_testbed.results import differing_outputs, entries, write_json
from flowedge_testbed.run_backends import LIVE, check_clock
from flowedge_testbed.runs import Case, Run, RunPlan, Task, by_setup
from flowedge_testbed.scenario import Scenario, read_scenario
from flowedge_testbed.stored_runs import Stored, read_load_record, read_record

NO_SETTINGS = {"name", "title", "clock", "quick", "report"}  # of a scenario, which results do not depend on


def run_bench(options: BenchOptions, progress: BenchProgress, models: ModelSet | None = None) -> Path:
    """Carry out a scenario and return the path of its report.

    Finished runs in the output directory are used again. If `models` is given, the scenario's are not loaded.
    """
    scenario = overridden(read_scenario(options.scenario), options)
    check_clock(scenario.clock)
    if options.save_paths is not None:
        check_can_save(scenario)
    all_cases = cases(scenario, options.scenario.parent)
    benchmark = Benchmark.prepare(options, scenario, all_cases, progress.say, models)
    results = benchmark.run(progress)
    if options.save_paths is not None:
        benchmark.save_paths(options.save_paths)
        progress.say(f"{options.save_paths}: the true paths, for --paths")
    progress.say("writing the report and plots")
    report, summary = benchmark.report(results)
    for line in summary.plain:
        progress.say(line)
    return report


@dataclass(frozen=True)
class Benchmark:
    """A scenario with everything loaded that its runs need."""

    options: BenchOptions
    scenario: Scenario
    cases: Sequence[Case]
    models: ModelSet
    datasets: Sequence[Dataset]
    plan: RunPlan | LoadPlan

    @classmethod
    def prepare(
        cls,
        options: BenchOptions,
        scenario: Scenario,
        all_cases: Sequence[Case],
        say: Callable[[str], None],
        models: ModelSet | None = None,
    ) -> Benchmark:
        """Load the models and the prompts, and plan the runs on the pipelines of `all_cases`."""
        loaded = load_pair(scenario.pair) if models is None else models
        datasets = _datasets(scenario, options.data_directory, loaded, say)
        hit_rates = library.hit_rates(loaded.facts.fingerprint, loaded.drafter_fingerprint)
        base = _base(scenario, loaded)
        if scenario.load is not None:
            load_plan = make_load_plan(scenario, all_cases, datasets, base, hit_rates)
            return cls(options, scenario, all_cases, loaded, datasets, load_plan)
        asked = Conversations(loaded, options.out, scenario.max_new_tokens).prompts
        plan = make_plan(scenario, all_cases, datasets, base, hit_rates, asked)
        return cls(options, scenario, all_cases, loaded, datasets, plan)

    def run(self, progress: BenchProgress) -> dict[str, Any]:
        """Carry out the runs that are left; write results.json and run.json, and return the results."""
        started, options, scenario, plan = time.time(), self.options, self.scenario, self.plan
        settings = self._worker_settings()
        left = self._left(settings)
        left_runs = sum(len(task.runs) for task in left)
        options.out.mkdir(parents=True, exist_ok=True)
        if scenario.clock == "paced" and (reason := why_loopback()) is not None:
            progress.say(f"agents share loopback, and senders wait for as long as a transfer takes: {reason}")
        progress.begin(plan.num_runs, plan.num_runs - left_runs)
        processes = 1 if scenario.clock in LIVE else options.processes
        began = time.perf_counter()
        done: list[FinishedTask] = []
        with closing(carry_out_all(left, settings, processes, self.models)) as finished:
            for task in finished:
                done.append(task)
                progress.advance(task.runs)
        worked = time.perf_counter() - began
        results = self._results()
        write_json(options.out / "results.json", results)
        write_json(options.out / "run.json", _run_facts(scenario, processes, plan, done, started, worked))
        if done and "schedule" in done[-1].facts:
            progress.say(ScheduleAccuracy(**done[-1].facts["schedule"]).line())
        return results

    def save_paths(self, file: Path) -> None:
        """Write the true paths of all runs to a file."""
        assert isinstance(self.plan, RunPlan)  # see check_can_save
        save_paths(file, self.plan, self.models, self.options.stored)

    def report(self, results: Mapping[str, Any]) -> tuple[Path, BenchSummary]:
        """Write the report and its pictures; return the report's path and the summary at its beginning."""
        scenario, out = self.scenario, self.options.out
        origin = origin_of(scenario, self.cases, results["datasets"], self.models)
        if isinstance(self.plan, LoadPlan):
            of_load = summarise_load(scenario, results, origin, self.options.command)
            pictures = draw_load_pictures(
                scenario, self.plan, results["load"], origin, out, self.options.stored
            )
            return write_load_report(scenario, results, of_load, pictures, out), of_load
        summary = summarise(scenario, results, origin, self.options.command)
        pictures = draw_pictures(
            PictureSource(scenario, results["runs"], origin, self.plan, self.models, self.options.stored, out)
        )
        return write_report(scenario, results, self.plan, summary, pictures, out), summary

    def _left(self, settings: WorkerSettings) -> Sequence[Task] | Sequence[LoadTask]:
        """Return the tasks with the runs that are left."""
        if isinstance(self.plan, LoadPlan):
            return unfinished_load(self.plan.tasks, settings)
        left = unfinished(self.plan.tasks, settings)
        return by_setup(left) if self.scenario.clock in LIVE else left

    def _worker_settings(self) -> WorkerSettings:
        """Return what a worker process needs.

        A live run cannot be repeated exactly, so the traces of runs that have a chart are stored. Those of a
        load are stored on every clock: to repeat it takes too long.
        """
        scenario = self.scenario
        if isinstance(self.plan, LoadPlan):
            traced = frozenset(cell.load.key for cell in charted_load(scenario, self.plan))
        else:
            traced = frozenset(ChartedRuns.of(scenario, self.plan).methods if scenario.clock in LIVE else ())
        return WorkerSettings(scenario.pair, scenario.clock, self.options.stored, traced)

    def _results(self) -> dict[str, Any]:
        scenario, models = self.scenario, self.models
        measured = (
            self._load_entries(self.plan) if isinstance(self.plan, LoadPlan) else self._entries(self.plan)
        )
        return {
            "scenario": scenario.name,
            "clock": scenario.clock,
            "quick": self.options.quick,
            "settings": scenario.model_dump(
                exclude=NO_SETTINGS | ({"load"} if scenario.load is None else set())
            ),
            "versions": versions(),
            "git": git_revision(),
            "code": code_digest(),
            "pair": models.fingerprints(),
            "datasets": {
                dataset.name: {"prompts": len(dataset.prompts), "left_out_as_too_long": dataset.left_out}
                for dataset in self.datasets
            },
            "profiles": _profiles(self.cases),
            **measured,
        }

    def _entries(self, plan: RunPlan) -> dict[str, Any]:
        """Return the results of the runs, which are all stored."""
        out = self.options.stored
        records = {run.key: _stored(read_record, out, run.key) for task in plan.tasks for run in task.runs}
        store = CoverageStore(self.models, out)

        def coverage_of(task: Task, run: Run) -> TreeCoverage:
            share = DraftShare.of(run.emulation)
            return store.coverage(task.prompt, task.sampling, task.max_new_tokens, run.noise, share)

        found = entries(plan.cells, records, all_bounds(plan.tasks, records, coverage_of))
        return {
            "outputs_differ": differing_outputs(plan.cells, records),
            **({"leads": leads_content(found)} if "places" in self.scenario.report.tables else {}),
            "runs": found,
        }

    def _load_entries(self, plan: LoadPlan) -> dict[str, Any]:
        """Return the results of the load points, which are all stored."""
        keys = [cell.load.key for cell in plan.cells]
        records = {key: _stored(read_load_record, self.options.stored, key) for key in keys}
        return {
            "outputs_differ": differing_answers(plan.cells, records),
            "runs": [],
            "load": load_entries(plan.cells, records),
        }


def _stored(read: Callable[[Path, str], Stored | None], out: Path, key: str) -> Stored:
    record = read(out, key)
    if record is None:
        raise BadRequestError(f"run {key} is missing from {out}; give the same command again")
    return record


def _datasets(
    scenario: Scenario, directory: Path, models: ModelSet, say: Callable[[str], None]
) -> list[Dataset]:
    files, missing = dataset_files(scenario.datasets, directory)
    if len(missing) == len(scenario.datasets):
        say(
            f"none of the scenario's datasets is in {directory} (--data DIR names another place): "
            "running on the project's own prompts"
        )
    elif missing:
        say(f"not in {directory}, and left out: {', '.join(missing)}")
    room = models.facts.max_positions - scenario.max_new_tokens
    choice = scenario.prompt_choice
    if OWN in files:
        choice = replace(choice, skip=0)  # which is of the datasets' files
    return [read_dataset(name, file, choice, room, models.encode) for name, file in files.items()]


def _base(scenario: Scenario, models: ModelSet) -> dict[str, Any]:
    """Return what every run depends on besides its own settings."""
    return {
        "code": code_digest(),
        "versions": versions(),
        "clock": scenario.clock,
        **models.fingerprints(),
        **({"namespaces": why_loopback() is None} if scenario.clock == "paced" else {}),
    }


def _profiles(all_cases: Sequence[Case]) -> dict[str, Any]:
    """Return the numbers of each profile, at the first point of the sweep."""
    profiles: dict[str, Any] = {}
    for case in all_cases:
        profiles.setdefault(case.profile, case.setup.sizes())
    return profiles


def _run_facts(
    scenario: Scenario,
    processes: int,
    plan: RunPlan | LoadPlan,
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
