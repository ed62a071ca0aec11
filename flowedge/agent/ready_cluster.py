"""A pipeline on this machine for notebooks and tests, exported as `flowedge.LocalCluster`."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from flowedge.agent.local_cluster import LocalCluster, check_local_stages
from flowedge.client import AsyncClient, Client
from flowedge.client.assembly import OnProgress, PipelineSpec, assemble
from flowedge.core.pipeline_config import PipelineConfig, drafter_names
from flowedge.drafting.choice import BUNDLED, default_drafter


class ReadyCluster(AbstractContextManager["ReadyCluster"]):
    """A draft node and stages as processes of this machine, with a pipeline that is ready.

    with flowedge.LocalCluster(stages=2) as cluster:
        print(cluster.client.generate("Why is the sky blue?").result().text)

    The agents are started when the context is entered or the client is first asked for. They end with the
    context, by `close`, or with this process.
    """

    def __init__(
        self,
        stages: int = 4,
        *,
        model: str = BUNDLED,
        drafter: str | Sequence[str] | None = None,
        quant: str = "none",
        timeout_s: float = 600.0,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        """
        model: a checkpoint directory, GGUF file or hub id, or "bundled".
        drafter: names of drafters to join; by default as of `default_drafter`.
        quant: quantisation of the layers.
        timeout_s: seconds that a whole generation may take.
        on_progress: called with the name of each device and what it is doing.

        Raises:
            BadRequestError: when the number of stages or a drafter is wrong.
        """
        check_local_stages(stages)
        self._stages = stages
        chosen = drafter if drafter is not None else default_drafter(model)
        self._settings = (
            PipelineConfig().changed(model=model, drafter=drafter_names(chosen), quant=quant).settings()
        )
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._running: ExitStack | None = None
        self._client: Client | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """The address of the draft node; starts the cluster if it does not run."""
        self.start()
        return self._address

    @property
    def client(self) -> Client:
        """A client of the draft node; starts the cluster if it does not run."""
        self.start()
        assert self._client is not None, "it was made with the cluster"
        return self._client

    def async_client(self) -> AsyncClient:
        """Return a further client, for asyncio, which the caller closes."""
        return AsyncClient(self.address, timeout_s=self._timeout_s)

    def start(self) -> None:
        """Start the agents and assemble the pipeline; has no effect if it runs.

        Raises:
            FlowEdgeError: when an agent does not start, or the pipeline cannot be assembled.
        """
        if self._running is not None:
            return
        with ExitStack() as starting:
            cluster = starting.enter_context(LocalCluster.of_pipeline(self._stages, name="sdk"))
            draft_node, *stages = cluster.addresses
            spec = PipelineSpec(draft_node=draft_node, stages=tuple(stages), **self._settings)
            assemble(spec, self._on_progress)
            cluster.keep_up(self._on_progress, lambda: assemble(spec, self._on_progress))
            self._client = starting.enter_context(Client(draft_node, timeout_s=self._timeout_s))
            self._address = draft_node
            self._running = starting.pop_all()
        atexit.register(self.close)

    def close(self) -> None:
        """End the agents; has no effect if they do not run."""
        running, self._running, self._client = self._running, None, None
        if running is not None:
            atexit.unregister(self.close)
            running.close()

    def __enter__(self) -> ReadyCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
