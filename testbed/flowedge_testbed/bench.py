"""A benchmark: plan a scenario, carry it out, and write results, report and plots."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.load.load_plan import LoadPlan, LoadTask, make_load_plan
from flowedge_testbed.load.load_results import differing_answers, load_entries
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced.paced_backend import why_loopback
from flowedge_testbed.paced.timings import ScheduleAccuracy
from flowedge_testbed.plan import Case, Plan, Run, Task, by_setup, cases, make_plan
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
from flowedge_testbed.scenario import SHIPPED, Scenario, read_scenario
from flowedge_testbed.workers import (
    FinishedTask,
    Stored,
    WorkerSettings,
    carry_out_all,
    load_pair,
    read_load_record,
    read_record,
    unfinished,
    unfinished_load,
)

NO_SETTINGS = {"name", "title", "clock", "quick", "report"}  # of a scenario, which results do not depend on


@dataclass(frozen=True)
class BenchOptions:
    """The options of `flowedge bench`. None leaves the scenario's value.

    Attributes:
        data: directory of the datasets' files; see data_directory for None.
        save_paths: file to write the true paths of all runs to.
        processes: number of processes that carry out runs.
        run_directory: of runs and true paths, which several benchmarks may share; `out` for None.
        cluster_dir, insecure: how agents are called, as `choose_credentials` was told; for the report.
    """

    scenario: Path
    out: Path
    clock: str | None = None
    quick: bool = False
    strategies: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    temperatures: tuple[float, ...] | None = None
    places: tuple[str, ...] | None = None
    noise: tuple[Noise, ...] | None = None
    samples: int | None = None
    model: str | None = None
    drafter: tuple[str, ...] | None = None
    middles: tuple[str, ...] | None = None
    paths: str | None = None
    save_paths: Path | None = None
    dtype: str | None = None
    device: str | None = None
    data: Path | None = None
    processes: int = 2
    run_directory: Path | None = None
    cluster_dir: Path | None = None
    insecure: bool = False

    @property
    def data_directory(self) -> Path:
        """`data`, or the working directory for a shipped scenario, or else the scenario's directory."""
        if self.data is not None:
            return self.data
        return Path() if self._is_shipped else self.scenario.parent

    @property
    def stored(self) -> Path:
        """The directory of runs and true paths."""
        return self.out if self.run_directory is None else self.run_directory

    @property
    def command(self) -> str:
        """The `flowedge bench` command with these options."""
        words = [self.scenario.stem if self._is_shipped else str(self.scenario), "--out", str(self.out)]
        words += ["--quick"] * self.quick + ["--insecure"] * self.insecure
        noise = None if self.noise is None else self.noise[0] if len(self.noise) == 1 else "both"
        given = {
            "--clock": self.clock,
            "--strategies": _joined(self.strategies),
            "--datasets": _joined(self.datasets),
            "--temperatures": _joined(self.temperatures),
            "--places": _joined(self.places),
            "--noise": noise,
            "--samples": self.samples,
            "--model": self.model,
            "--middle": _joined(self.middles),
            "--paths": self.paths,
            "--save-paths": self.save_paths,
            "--dtype": self.dtype,
            "--device": self.device,
            "--data": self.data,
            "--cluster-dir": self.cluster_dir,
        }
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += [word for name in self.drafter or () for word in ("--drafter", name)]
        return f"flowedge bench {shlex.join(words)}"

    @property
    def _is_shipped(self) -> bool:
        return SHIPPED in self.scenario.parents


def _joined(values: Sequence[str | float] | None) -> str | None:
    return None if values is None else ",".join(f"{v:g}" if isinstance(v, float) else v for v in values)


class BenchProgress:
    """A listener to the progress of a benchmark. This base class ignores everything."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def begin(self, total: int, finished: int) -> None:
        """Take notice of the number of runs, and of the number that earlier commands have finished."""

    def advance(self, runs: int) -> None:
        """Take notice that `runs` more runs have ended."""


def overridden(scenario: Scenario, options: BenchOptions) -> Scenario:
    """Return the scenario with the command line's values in place of its own.

    Raises:
        BadRequestError: when a value is wrong, or the scenario has no dataset of a given name.
    """
    changed = scenario.quickened() if options.quick else scenario
    content = changed.model_dump()
    if options.datasets is not None:
        unknown = sorted(set(options.datasets) - set(scenario.datasets))
        if unknown:
            raise BadRequestError(
                f"no dataset {', '.join(unknown)} in the scenario; it has {', '.join(scenario.datasets)}"
            )
        content["datasets"] = {name: scenario.datasets[name] for name in options.datasets}
    if options.places is not None:
        unknown = sorted(set(options.places) - set(scenario.places))
        if unknown:
            known = ", ".join(scenario.places) or "none"
            raise BadRequestError(f"no place {', '.join(unknown)} in the scenario; it has {known}")
        content["places"] = {name: content["places"][name] for name in options.places}
    given: dict[str, Any] = {
        "clock": options.clock,
        "strategies": None if options.strategies is None else _methods(options.strategies, scenario),
        "temperatures": options.temperatures,
        "noise": options.noise,
        "samples": options.samples,
    }
    content.update({name: value for name, value in given.items() if value is not None})
    if options.model is not None:
        content["pair"].pop("paths", None)  # of the scenario's own model
    models = {
        "model": options.model,
        "paths": options.paths,
        "drafter": options.drafter,
        "middles": options.middles,
        "dtype": options.dtype,
        "device": options.device,
    }
    content["pair"].update({name: value for name, value in models.items() if value is not None})
    return Scenario.checked(content, "the command line")


def _methods(given: Sequence[str], scenario: Scenario) -> list[str]:
    """Return the names of methods; a variant's name may have commas, at which --strategies was split."""
    found: list[str] = []
    rest = list(given)
    while rest:
        counts = range(len(rest), 1, -1)
        count = next((count for count in counts if ", ".join(rest[:count]) in scenario.variants), 1)
        found.append(", ".join(rest[:count]))
        del rest[:count]
    return found


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
    plan: Plan | LoadPlan

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
        assert isinstance(self.plan, Plan)  # see check_can_save
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

    def _entries(self, plan: Plan) -> dict[str, Any]:
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
    plan: Plan | LoadPlan,
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
