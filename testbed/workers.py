"""Carries out tasks, over several processes, and keeps each finished run on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from testbed.clocks import Clock, make_clock
from testbed.pair import Pair
from testbed.plan import Task
from testbed.record import RunRecord


@dataclass(frozen=True)
class WorkerSettings:
    """What a process needs to begin; `directory` receives the runs."""

    model: str
    drafter: str
    clock: str
    directory: Path


@dataclass(frozen=True)
class Done:
    """A finished task: how many runs it had, and the tokens they came to."""

    runs: int
    tokens: int


def record_file(directory: Path, key: str) -> Path:
    return directory / "runs" / f"{key}.json"


def read_record(directory: Path, key: str) -> RunRecord | None:
    """The finished run of this key; None when there is none that can be read."""
    try:
        content = json.loads(record_file(directory, key).read_text(encoding="utf-8"))
        return RunRecord.from_dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unfinished(tasks: Sequence[Task], directory: Path) -> list[Task]:
    """What is left of the tasks."""
    left = [
        replace(task, runs=tuple(run for run in task.runs if read_record(directory, run.key) is None))
        for task in tasks
    ]
    return [task for task in left if task.runs]


class Worker:
    """One process's models and clock."""

    def __init__(self, settings: WorkerSettings, pair: Pair | None = None) -> None:
        import torch  # noqa: PLC0415 (slow; only a worker needs it)

        torch.set_num_threads(1)
        self._directory = settings.directory
        loaded = Pair.load(settings.model, settings.drafter) if pair is None else pair
        self._clock: Clock = make_clock(settings.clock, loaded, settings.directory)

    def carry_out(self, task: Task) -> Done:
        """Run a task, keeping each run as it ends."""
        tokens = 0
        for run, record, _ in self._clock.measure(task):
            tokens += record.new_tokens
            file = record_file(self._directory, run.key)
            part = file.with_name(f"{file.name}.{os.getpid()}.part")
            part.write_text(json.dumps(record.to_dict()), encoding="utf-8")
            part.replace(file)
        return Done(len(task.runs), tokens)


def carry_out_all(
    tasks: Sequence[Task], settings: WorkerSettings, processes: int, pair: Pair | None = None
) -> Iterator[Done]:
    """Carry out tasks in so many processes, or in this one; yields as each ends, in any order.

    Leaving the iterator early ends the processes. `pair` is used when there is only this process.
    """
    record_file(settings.directory, "x").parent.mkdir(parents=True, exist_ok=True)
    if processes <= 1 or len(tasks) <= 1:
        worker = Worker(settings, pair)
        yield from map(worker.carry_out, tasks)
        return
    # Longest first, so that no process is left with a long one at the end.
    ordered = sorted(tasks, key=lambda task: -len(task.runs))
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(processes, len(tasks)), _begin, (settings,)) as pool:
        yield from pool.imap_unordered(_carry_out, ordered)


_settings: list[WorkerSettings] = []


def _begin(settings: WorkerSettings) -> None:
    """Nothing here may fail: a pool starts a process anew for ever when its initialiser does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process hears it and ends this one
    _settings.append(settings)


@cache
def _worker() -> Worker:
    return Worker(_settings[0])


def _carry_out(task: Task) -> Done:
    return _worker().carry_out(task)
