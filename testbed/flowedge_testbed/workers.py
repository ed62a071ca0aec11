"""Carries out tasks, over several processes, and keeps each finished run on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from flowedge_testbed.bounds.bounds import drafts, is_bounded
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import Task
from flowedge_testbed.record import RunRecord
from flowedge_testbed.replay.path_reach import CoverageStore
from flowedge_testbed.run_backends import RunBackend, make_run_backend
from flowedge_testbed.trace import Trace


@dataclass(frozen=True)
class WorkerSettings:
    """What a process needs to begin.

    Attributes:
        directory: receives the runs; traced: keys of those whose traces are kept as well.
    """

    model: str
    drafter: tuple[str, ...]
    clock: str
    directory: Path
    traced: frozenset[str] = frozenset()
    middles: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedTask:
    """A finished task: how many runs it had, and the tokens they came to.

    `facts` are what the clock has to say of everything it has measured so far.
    """

    runs: int
    tokens: int
    facts: dict[str, Any]


def record_file(directory: Path, key: str) -> Path:
    return directory / "runs" / f"{key}.json"


def read_record(directory: Path, key: str) -> RunRecord | None:
    """The finished run of this key; None when there is none that can be read."""
    try:
        content = json.loads(record_file(directory, key).read_text(encoding="utf-8"))
        return RunRecord.from_dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def trace_file(directory: Path, key: str) -> Path:
    return directory / "traces" / f"{key}.json"


def read_trace(directory: Path, key: str) -> Trace | None:
    """The trace kept of this run; None when there is none that can be read."""
    try:
        return Trace.from_dict(json.loads(trace_file(directory, key).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unfinished(tasks: Sequence[Task], settings: WorkerSettings) -> list[Task]:
    """What is left of the tasks."""

    def is_left(key: str) -> bool:
        if read_record(settings.directory, key) is None:
            return True
        return key in settings.traced and read_trace(settings.directory, key) is None

    left = [replace(task, runs=tuple(run for run in task.runs if is_left(run.key))) for task in tasks]
    return [task for task in left if task.runs]


class Worker:
    """One process's models and clock."""

    def __init__(self, settings: WorkerSettings, pair: ModelSet | None = None) -> None:
        import torch  # noqa: PLC0415 (slow; only a worker needs it)

        torch.set_num_threads(1)
        self._settings = settings
        loaded = ModelSet.load(settings.model, settings.drafter, settings.middles) if pair is None else pair
        self._clock: RunBackend = make_run_backend(settings.clock, loaded, settings.directory)
        self._reaches = CoverageStore(loaded, settings.directory)

    def carry_out(self, task: Task) -> FinishedTask:
        """Run a task, keeping each run as it ends, and then the reach of its drafts."""
        tokens, directory = 0, self._settings.directory
        for run, record, trace in self._clock.measure(task):
            tokens += record.new_tokens
            if run.key in self._settings.traced:
                _keep(trace_file(directory, run.key), trace.to_dict())
            _keep(record_file(directory, run.key), record.to_dict())
        for noise in {run.noise for run in task.runs if is_bounded(run) and drafts(run)}:
            self._reaches.reach(task.prompt, task.sampling, task.max_new_tokens, noise)
        return FinishedTask(len(task.runs), tokens, self._clock.facts())

    def close(self) -> None:
        """Give back what the clock has taken."""
        self._clock.close()


def _keep(file: Path, content: dict[str, Any]) -> None:
    """Write a file in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(file)


def carry_out_all(
    tasks: Sequence[Task], settings: WorkerSettings, processes: int, pair: ModelSet | None = None
) -> Generator[FinishedTask, None, None]:
    """Carry out tasks in so many processes, or in this one; yields as each ends, in any order.

    Closing the generator early ends the processes. `pair` is used when there is only this process.
    """
    if processes <= 1 or len(tasks) <= 1:
        with closing(Worker(settings, pair)) as worker:
            yield from map(worker.carry_out, tasks)
        return
    # Longest first, so that no process is left with a long one at the end.
    ordered = sorted(tasks, key=lambda task: -len(task.runs))
    context = multiprocessing.get_context("spawn")
    # Starting the tracker unblocks SIGINT, so it must run before SIGINT is blocked.
    resource_tracker.ensure_running()
    # Processes inherit what is blocked: the main one hears Ctrl-C and ends them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = context.Pool(min(processes, len(tasks)), _begin, (settings,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with pool:
        yield from pool.imap_unordered(_carry_out, ordered)


_settings: list[WorkerSettings] = []


def _begin(settings: WorkerSettings) -> None:
    """Nothing here may fail: a pool starts a process anew for ever when its initialiser does."""
    _settings.append(settings)


@cache
def _worker() -> Worker:
    return Worker(_settings[0])


def _carry_out(task: Task) -> FinishedTask:
    return _worker().carry_out(task)
