"""What the tests of a run cost: `make test COSTS=FILE`, then `python -m tests.support.costs_table FILE`.

The wall-clock seconds of a test are divided by what its thread did, in these kinds:

- systemd: in a test that boots hosts; browser: in a test that drives Chromium;
- starts: blocked on a command that the test started, which is imports mostly;
- loading: in a function that loads a model, or waits until agents have loaded theirs;
- computing: on the processor, elsewhere;
- waiting: the rest, which includes waiting for a core.

Beside them stands the processor time of the test's process and all its descendants.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

SAMPLED_S = 0.2  # of a quicker test, the processor time is counted with the next one's

BOOTED = re.compile("nspawn")
LOADS = (
    "flowedge.models.language_model:LanguageModel.load",
    "flowedge.models.block:LayerBlock.load",
    "flowedge.models.lm_head:LMHead.load",
    "flowedge.models.check.reference:ReferenceModel.load",
    "flowedge.drafting.loading:load_drafter",
    "flowedge.client.assembly:assemble",
)


class Clock:
    """Sums the wall-clock seconds that the outermost of its functions took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return function(*arguments, **options)
            self._inside = True
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - started

        return timed

    def take(self) -> float:
        taken, self.seconds = self.seconds, 0.0
        return taken


class Costs:
    """The plugin: in a process that runs tests it measures, in the one that reports it writes the file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._starts, self._loads = Clock(), Clock()
        self._seen = 0.0
        self._patched = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._file is not None:
            self._file.write_text("", encoding="utf-8")

    def _patch(self) -> None:
        self._patched = True
        for name in ("wait", "communicate"):
            setattr(subprocess.Popen, name, self._starts.timing(getattr(subprocess.Popen, name)))
        for place in LOADS:
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(module)
            *classes, name = path.split(".")
            for part in classes:
                owner = getattr(owner, part)
            plain = owner.__dict__[name]
            if isinstance(plain, classmethod | staticmethod):
                setattr(owner, name, type(plain)(self._loads.timing(plain.__func__)))
            else:
                setattr(owner, name, self._loads.timing(plain))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not self._patched:
            self._patch()
            self._seen = _processor_seconds()
        self._starts.take()
        self._loads.take()
        self._wall, self._own = time.perf_counter(), time.process_time()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
            processor = own
            if wall > SAMPLED_S:
                seen = _processor_seconds()
                processor, self._seen = (
                    max(own, seen - self._seen),
                    seen,
                )  # a lost process takes its time along
            costs = {"wall": wall, "processor": processor, **self._kinds(item, wall, own)}
            report.user_properties.append(("costs", costs))
        return report

    def _kinds(self, item: pytest.Item, wall: float, own: float) -> dict[str, float]:
        starts, loads = self._starts.take(), self._loads.take()
        if BOOTED.search(item.nodeid):
            return {"systemd": wall}
        if "browser" in getattr(item, "fixturenames", ()):
            return {"browser": wall}
        loading = min(loads, wall)
        starting = min(starts, wall - loading)
        computing = min(own, wall - loading - starting)
        return {
            "starts": starting,
            "loading": loading,
            "computing": computing,
            "waiting": wall - loading - starting - computing,
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        costs = dict(report.user_properties).get("costs")
        if self._file is not None and report.when == "teardown" and costs is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": report.nodeid, **costs}) + "\n")


def _processor_seconds() -> float:
    """Return the processor time of this process and its descendants, those that have ended included."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=Path, default=None, help="write what each test cost into this file, as JSON lines"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--costs")
    if file is not None:
        worker = hasattr(config, "workerinput")
        config.pluginmanager.register(Costs(None if worker else file), "suite-costs")
