"""The backend of the paced clock: agents do the work in the time of the devices that they emulate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.device.compute import FLOAT32
from flowedge.engine.executors.draft_models import PREFILL_ROWS
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.strategies.published.pipespec import PipeSpec
from flowedge_testbed.emulation.changing_costs import Events
from flowedge_testbed.emulation.draft_share import WHOLE, DraftShare
from flowedge_testbed.live.live_run import run_live
from flowedge_testbed.live.load_run import run_live_load
from flowedge_testbed.load.load_plan import LoadRun, LoadTask
from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced import namespaces
from flowedge_testbed.paced.cluster import PacedCluster
from flowedge_testbed.paced.timings import JobTiming, ScheduleAccuracy
from flowedge_testbed.record import RunRecord
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.trace import Trace

WARM_UP_TOKENS = 8  # the first forwards of a process take longer

_log = logging.getLogger(__name__)


def _shared_out(cluster: PacedCluster, emulation: PipelineProfile) -> list[tuple[str, ...]]:
    """Return the addresses of the agents of each middle model."""
    addresses = iter([agent.address for agent in cluster.middles])
    return [tuple(islice(addresses, count)) for count in emulation.side_counts]


@cache
def why_loopback() -> str | None:
    """Return why agents cannot have networks of their own here; None if they can."""
    reason = namespaces.why_not()
    if reason is None:
        try:
            with namespaces.Namespaces(1) as network:
                network.limit(0, 100.0)
        except DeviceError as error:
            reason = error.reason
    return reason


class PacedBackend:
    """Runs on agents that it starts, one at a time. Each emulation has a pipeline assembled for it."""

    def __init__(self, models: ModelSet, directory: Path) -> None:  # noqa: ARG002
        self._models = models
        self._cluster: PacedCluster | None = None
        self._assembled: tuple[PipelineProfile, int, Events] | None = None
        self._spec: PipelineSpec | None = None
        self._pipeline = ""
        self._timings: dict[str, list[JobTiming]] = {}  # by method

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        """Carry out the runs of a task, as RunBackend has it.

        Raises:
            FlowEdgeError: when an agent fails; it names the agent.
        """
        for run in task.runs:
            cluster, spec = self._prepare(task.prompt, run)
            with cluster.running():
                record, trace = run_live(spec.draft_node, spec.stages, task, run, spec.middle_addresses)
            self._timings.setdefault(run.strategy, []).extend(cluster.timings())
            yield run, record, trace

    def measure_load(self, task: LoadTask) -> Iterator[tuple[LoadRun, LoadRecord, Trace]]:
        """Carry out the load points of a task, as RunBackend has it.

        Raises:
            FlowEdgeError: when an agent fails; it names the agent.
        """
        for load in task.runs:
            cluster, spec = self._prepare(task.requests.prompts[0], load.run)
            with cluster.running():
                record, trace = run_live_load(spec.draft_node, spec.stages, task, load)
            self._timings.setdefault(load.run.strategy, []).extend(cluster.timings())
            yield load, record, trace

    def facts(self) -> dict[str, Any]:
        """Return the kind of network, and how well the agents kept the schedule."""
        reason = why_loopback()
        network = {"kind": "namespaces"} if reason is None else {"kind": "loopback", "because": reason}
        every = [timing for timings in self._timings.values() for timing in timings]
        return {
            "network": network,
            "schedule": ScheduleAccuracy.of(every).to_dict(),
            "schedule_by_method": {
                name: ScheduleAccuracy.of(own).to_dict() for name, own in self._timings.items()
            },
        }

    def close(self) -> None:
        """Stop the agents."""
        cluster, self._cluster, self._assembled = self._cluster, None, None
        if cluster is not None:
            cluster.stop()

    def _prepare(self, prompt: tuple[int, ...], run: Run) -> tuple[PacedCluster, PipelineSpec]:
        emulation = run.emulation
        self._check(run)
        cluster = self._agents(emulation.num_stages, sum(emulation.side_counts))
        wanted = (emulation, run.link_seed, run.events)
        if self._assembled == wanted and self._spec is not None:
            return cluster, self._spec
        if self._assembled is not None and self._spec is not None:
            release([self._spec.draft_node], self._pipeline)
        self._assembled = None
        cluster.emulate(*wanted)
        spec = PipelineSpec(
            draft_node=cluster.draft_node.address,
            stages=tuple(agent.address for agent in cluster.stages[: len(emulation.stages)]),
            middles=tuple(zip(self._models.middle_names, _shared_out(cluster, emulation), strict=True)),
            model=self._models.model,
            drafter=self._models.drafter_names,
            dtype=FLOAT32,  # as the replay, whose tokens it gives
            exact="off",
            verification=emulation.verification,
        )
        self._pipeline = assemble(spec, lambda device, text: _log.info("%s: %s", device, text))
        self._spec, self._assembled = spec, wanted
        with Client(spec.draft_node) as client:
            strategy = PipeSpec.name if emulation.middles else DEFAULT_STRATEGY
            client.generate(
                prompt_ids=prompt, strategy=strategy, max_new_tokens=WARM_UP_TOKENS, seed=0
            ).result()
        cluster.timings()  # those of the warm-up
        return cluster, spec

    def _agents(self, stages: int, middles: int) -> PacedCluster:
        """Return agents for stages and for devices of middle models: the running ones if they are enough."""
        running = self._cluster
        if running is not None and (len(running.stages) < stages or len(running.middles) < middles):
            self.close()
        if self._cluster is None:
            cluster = PacedCluster(stages, middles, namespaces=why_loopback() is None)
            cluster.start()
            self._cluster = cluster
        return self._cluster

    def _check(self, run: Run) -> None:
        layers, stages = self._models.checkpoint.config.num_hidden_layers, len(run.emulation.stages)
        if stages > layers:
            raise BadRequestError(
                f"the model of {layers} layers cannot be computed on {stages} stages; use --clock replay"
            )
        if DraftShare.of(run.emulation) != WHOLE:
            raise BadRequestError(
                "agents that are paced draft over the whole vocabulary; use --clock replay or virtual, or "
                "leave out draft_vocabulary and draft_quant"
            )
        if run.prefill_rows != PREFILL_ROWS:
            raise BadRequestError(
                f"prefill_rows is {run.prefill_rows}; agents prefill in chunks of {PREFILL_ROWS} rows"
            )
