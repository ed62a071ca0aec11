"""Worker processes that carry out tasks and store each finished run on disk."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from flowedge.models.host.payloads import torch_dtype
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.load.load_plan import LoadRun, LoadTask
from flowedge_testbed.load.load_record import charted_part
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.replay.path_coverage import CoverageStore
from flowedge_testbed.replay.run_bounds import drafts, is_bounded
from flowedge_testbed.run_backends import RunBackend, make_run_backend
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.scenario_parts import ModelSetNames
from flowedge_testbed.stored_runs import (
    read_load_record,
    read_record,
    read_trace,
    record_file,
    store,
    trace_file,
)


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker process needs to begin.

    Attributes:
        pair: the models.
        clock: the name of the run backend.
        directory: where runs are stored.
        traced: keys of the runs whose traces are stored as well.
    """

    pair: ModelSetNames
    clock: str
    directory: Path
    traced: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FinishedTask:
    """A finished task.

    Attributes:
        runs: number of runs; tokens: of all their outputs.
        facts: RunBackend.facts of the process, over everything that it has measured so far.
    """

    runs: int
    tokens: int
    facts: dict[str, Any]


def unfinished(tasks: Sequence[Task], settings: WorkerSettings) -> list[Task]:
    """Return the tasks with the runs that are not stored yet."""

    def is_left(run: Run) -> bool:
        return read_record(settings.directory, run.key) is None or _lacks_trace(run.key, settings)

    left = [replace(task, runs=tuple(filter(is_left, task.runs))) for task in tasks]
    return [task for task in left if task.runs]


def unfinished_load(tasks: Sequence[LoadTask], settings: WorkerSettings) -> list[LoadTask]:
    """Return the tasks with the load points that are not stored yet."""

    def is_left(run: LoadRun) -> bool:
        return read_load_record(settings.directory, run.key) is None or _lacks_trace(run.key, settings)

    left = [replace(task, runs=tuple(filter(is_left, task.runs))) for task in tasks]
    return [task for task in left if task.runs]


def _lacks_trace(key: str, settings: WorkerSettings) -> bool:
    return key in settings.traced and read_trace(settings.directory, key) is None


def load_pair(names: ModelSetNames) -> ModelSet:
    """Load the models of a scenario. Errors as in ModelSet.load."""
    dtype = None if names.dtype is None else torch_dtype(names.dtype)
    return ModelSet.load(names.model, names.drafter, names.middles, dtype, names.device, names.paths)


class Worker:
    """The models and the run backend of one process."""

    def __init__(self, settings: WorkerSettings, models: ModelSet | None = None) -> None:
        import torch  # noqa: PLC0415 (slow; only a worker needs it)

        torch.set_num_threads(1)
        self._settings = settings
        loaded = load_pair(settings.pair) if models is None else models
        self._backend: RunBackend = make_run_backend(settings.clock, loaded, settings.directory)
        self._coverages = CoverageStore(loaded, settings.directory)

    def carry_out(self, task: Task | LoadTask) -> FinishedTask:
        """Carry out a task and store each run as it ends."""
        return self._carry_out_load(task) if isinstance(task, LoadTask) else self._carry_out_runs(task)

    def _carry_out_load(self, task: LoadTask) -> FinishedTask:
        tokens, directory = 0, self._settings.directory
        for load, record, trace in self._backend.measure_load(task):
            tokens += record.new_tokens
            if load.key in self._settings.traced:
                store(trace_file(directory, load.key), charted_part(record, trace).to_dict())
            store(record_file(directory, load.key), record.to_dict())
        return FinishedTask(len(task.runs), tokens, self._backend.facts())

    def _carry_out_runs(self, task: Task) -> FinishedTask:
        """Store the runs, then the coverage of their draft trees."""
        tokens, directory = 0, self._settings.directory
        for run, record, trace in self._backend.measure(task):
            tokens += record.new_tokens
            if run.key in self._settings.traced:
                store(trace_file(directory, run.key), trace.to_dict())
            store(record_file(directory, run.key), record.to_dict())
        kinds = {
            (run.noise, DraftShare.of(run.emulation)) for run in task.runs if is_bounded(run) and drafts(run)
        }
        for noise, share in kinds:
            self._coverages.coverage(task.prompt, task.sampling, task.max_new_tokens, noise, share)
        return FinishedTask(len(task.runs), tokens, self._backend.facts())

    def close(self) -> None:
        """Release what the backend holds."""
        self._backend.close()


def carry_out_all(
    tasks: Sequence[Task] | Sequence[LoadTask],
    settings: WorkerSettings,
    processes: int,
    models: ModelSet | None = None,
) -> Generator[FinishedTask, None, None]:
    """Carry out tasks and yield each when it has ended, in any order.

    Closing the generator early ends the processes.

    Args:
        processes: with 1 the tasks are carried out in this process.
        models: for this process, so that they are not loaded again.
    """
    if processes <= 1 or len(tasks) <= 1:
        with closing(Worker(settings, models)) as worker:
            yield from map(worker.carry_out, tasks)
        return
    # Longest first, so that no process is left with a long one at the end.
    ordered: list[Task | LoadTask] = sorted(tasks, key=lambda task: -len(task.runs))
    context = multiprocessing.get_context("spawn")
    # Processes inherit blocked signals, so that Ctrl-C reaches the main one alone, which ends the others.
    # Starting the resource tracker would unblock SIGINT again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = context.Pool(min(processes, len(tasks)), _begin, (settings,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with pool:
        yield from pool.imap_unordered(_carry_out, ordered)


_settings: list[WorkerSettings] = []


def _begin(settings: WorkerSettings) -> None:
    """Keep the settings of this process. A pool restarts a process forever if its initialiser fails."""
    _settings.append(settings)


@cache
def _worker() -> Worker:
    return Worker(_settings[0])


def _carry_out(task: Task | LoadTask) -> FinishedTask:
    return _worker().carry_out(task)
