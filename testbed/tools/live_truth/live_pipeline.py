"""A pipeline of agents on loopback, each with one thread, as `flowedge demo` starts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from flowedge.agent.local_cluster import LocalCluster
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.pipeline_config import DRAFT_NODE
from flowedge_testbed.live.live_run import run_live
from flowedge_testbed.record import RunRecord
from flowedge_testbed.runs import Run, Task


@dataclass(frozen=True)
class LivePipeline:
    """The addresses of the agents, the draft node's first."""

    addresses: Sequence[str]

    def run(self, task: Task, run: Run) -> RunRecord:
        """Carry out a run; raises what `run_live` raises."""
        return run_live(self.addresses[0], self.addresses[1:], task, run)[0]


@contextmanager
def live_pipeline(model: str, drafters: Sequence[str], stages: int, dtype: str) -> Iterator[LivePipeline]:
    """Have a model and its drafters on agents, whose processes end when the context is left."""
    cluster = LocalCluster(stages, name="truth")
    cluster.start()
    try:
        addresses = tuple(agent.address for agent in cluster.agents)
        spec = PipelineSpec(
            draft_node=addresses[0],
            stages=addresses[1:],
            model=model,
            drafter=tuple(drafters),
            verification=DRAFT_NODE,
        ).changed(dtype=dtype)
        assemble(spec, lambda *_: None)
        yield LivePipeline(addresses)
    finally:
        cluster.stop()
