"""The backend of the real clock: agents on a network do the work and measure the time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import FlowEdgeError
from flowedge_testbed.live.live_run import run_live
from flowedge_testbed.live.load_run import run_live_load
from flowedge_testbed.live.power_meter import PowerMeter, boards_power
from flowedge_testbed.load.load_plan import LoadRun, LoadTask
from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.record import RunRecord
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.trace import Trace

WARM_UP_TOKENS = 8  # the first forwards of a device that has just loaded take longer

_log = logging.getLogger(__name__)


class RealBackend:
    """Runs on the agents that a scenario names, one at a time.

    The pipeline is assembled for the first run, unless the agents serve it already. `close` releases a
    pipeline that was assembled here.
    """

    def __init__(self, models: ModelSet, directory: Path) -> None:  # noqa: ARG002
        self._spec: PipelineSpec | None = None
        self._assembled: str | None = None
        self._meter: PowerMeter | None = None
        self._boards = ExitStack()  # connections that the meter reads over

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        """Carry out the runs of a task, as RunBackend has it.

        Raises:
            FlowEdgeError: when a device fails; it names the device.
        """
        for run in task.runs:
            spec = run.real.spec
            self._prepare(spec, task.prompt, run)
            found = run_live(spec.draft_node, spec.stages, task, run, spec.middle_addresses, self._meter)
            yield run, *found

    def measure_load(self, task: LoadTask) -> Iterator[tuple[LoadRun, LoadRecord, Trace]]:
        """Carry out the load points of a task, as RunBackend has it.

        Raises:
            FlowEdgeError: when a device fails; it names the device.
        """
        for load in task.runs:
            spec = load.run.real.spec
            self._prepare(spec, task.requests.prompts[0], load.run)
            yield load, *run_live_load(spec.draft_node, spec.stages, task, load)

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Release the pipeline if it was assembled here. An agent that is gone is logged."""
        self._boards.close()
        self._meter = None
        try:
            self._release()
        except FlowEdgeError as error:
            _log.warning("the pipeline was not released: %s", error)

    def _release(self) -> None:
        spec, assembled, self._spec, self._assembled = self._spec, self._assembled, None, None
        if spec is not None and assembled is not None:
            release([spec.draft_node], assembled)

    def _prepare(self, spec: PipelineSpec, prompt: tuple[int, ...], run: Run) -> None:
        if self._spec == spec:
            return
        self._release()
        with Client(spec.draft_node) as client:
            if not spec.is_served_by(client.describe()):
                self._assembled = assemble(spec, lambda device, text: _log.info("%s: %s", device, text))
            self._spec = spec
            client.generate(
                prompt_ids=prompt, strategy=run.strategy, max_new_tokens=WARM_UP_TOKENS, seed=0
            ).result()
        devices = (spec.draft_node, *spec.stages, *spec.middle_addresses)
        boards = [self._boards.enter_context(Client(address)) for address in devices]
        if boards_power(boards) is not None:
            self._meter = PowerMeter(partial(boards_power, boards))
