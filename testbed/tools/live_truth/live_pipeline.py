"""A pipeline of agents on loopback, each with one thread, as `flowedge demo` starts it."""

from __future__ import annotations

from types import TracebackType

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.options import BUNDLED
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.verification import DRAFT_NODE
from flowedge_testbed.live.live_run import run_live
from flowedge_testbed.plan import Run, Task
from flowedge_testbed.record import RunRecord


class LivePipeline:
    """The bundled pair on a draft node and stages, whose processes end when the context is left."""

    def __init__(self, stages: int, dtype: str) -> None:
        self._cluster = LocalCluster(stages, name="truth")
        self._dtype = dtype
        self._addresses: list[str] = []

    def __enter__(self) -> LivePipeline:
        self._cluster.start()
        try:
            self._addresses = [agent.address for agent in self._cluster.agents]
            spec = PipelineSpec(
                self._addresses[0],
                tuple(self._addresses[1:]),
                BUNDLED,
                (BUNDLED,),
                dtype=self._dtype,
                verification=DRAFT_NODE,
            )
            assemble(spec, lambda *_: None)
        except BaseException:
            self._cluster.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.stop()

    def run(self, task: Task, run: Run) -> RunRecord:
        """Carry out a run; raises what `run_live` raises."""
        return run_live(self._addresses[0], self._addresses[1:], task, run)[0]
