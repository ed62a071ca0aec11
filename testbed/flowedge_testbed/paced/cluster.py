"""The agents of paced pipelines: in network namespaces where these can be made, on loopback otherwise."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

from flowedge.agent.local_cluster import LocalAgent, LocalCluster
from flowedge.core.errors import BadRequestError
from flowedge.device.process import module_command
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.virtual_pipeline import DRAFT_NODE, device_of, places_of
from flowedge_testbed.emulation.changing_costs import Events
from flowedge_testbed.paced.namespaces import Namespaces
from flowedge_testbed.paced.pacing import PacedPipeline
from flowedge_testbed.paced.run_clock import RunClock
from flowedge_testbed.paced.timings import JobTiming, TimingReader


class PacedCluster:
    """A draft node, agents for stages and for middle models; it leaves no process and no interface.

    Call `emulate` before a pipeline is assembled of the agents.
    """

    def __init__(self, stages: int, middles: int = 0, *, namespaces: bool) -> None:
        """Prepare agents for so many stages and devices of middle models.

        If `namespaces`, give each agent a network of its own, which takes root; else share loopback.
        """
        self._network = Namespaces(1 + stages + middles) if namespaces else None
        self._agents = LocalCluster(stages, middles=middles, name="paced", threads=1, command=self._command)
        self._places = places_of(stages, middles)
        self._directory: Path | None = None
        self._readers: list[TimingReader] = []
        self._clock: RunClock | None = None
        self._stack = ExitStack()

    @property
    def draft_node(self) -> LocalAgent:
        return self._agents.draft_node

    @property
    def stages(self) -> list[LocalAgent]:
        return self._agents.stages

    @property
    def middles(self) -> list[LocalAgent]:
        return self._agents.middles

    def start(self) -> None:
        """Start all agents. If that fails, nothing is left.

        Raises:
            DeviceError: when an agent or the network does not start.
            DeadlineError: when starting takes too long.
        """
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowedge-paced-")))
            self._clock = stack.enter_context(closing(RunClock(self._clock_file)))
            if self._network is not None:
                stack.enter_context(self._network)
            stack.enter_context(self._agents)
            self._readers = [TimingReader(self._timings(place)) for place in range(len(self._agents.agents))]
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Stop the agents and take their network down."""
        self._stack.close()

    def emulate(self, emulation: PipelineProfile, seed: int, events: Events = ()) -> None:
        """Make the next assembled pipeline take the time of `emulation`, on the first agents.

        Args:
            seed: of the links' jitter.
            events: that change the pipeline in the middle of each run (see `running`).

        Raises:
            BadRequestError: when the emulation has more stages or middle models than there are agents.
        """
        wanted = (emulation.num_stages, sum(emulation.side_counts))
        if wanted[0] > len(self.stages) or wanted[1] > len(self.middles):
            raise BadRequestError(
                f"{wanted[0]} stages and {wanted[1]} devices of middle models are to be emulated by "
                f"{len(self.stages)} and {len(self.middles)} agents"
            )
        PacedPipeline(emulation, seed, self._network is not None, events).write(self._pipeline)
        if self._network is not None:
            for place in range(DRAFT_NODE, len(emulation.stages)):
                self._network.limit(self._places.index(place), emulation.links[place].mbps)
            sides = [link for middle in emulation.middles for link in middle.links]
            for number, link in enumerate(sides, start=1):
                self._network.limit(self._places.index(device_of(number)), link.mbps)

    def running(self) -> AbstractContextManager[None]:
        """Carry out a run within the context: from its beginning on, the events' times are counted."""
        if self._clock is None:
            raise BadRequestError("the agents have not been started")
        return self._clock.running()

    def timings(self) -> list[JobTiming]:
        """Return the times of all jobs since the last call."""
        return [timing for reader in self._readers for timing in reader.take()]

    def __enter__(self) -> PacedCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _pipeline(self) -> Path:
        return self._in_directory("pipeline.json")

    @property
    def _clock_file(self) -> Path:
        return self._in_directory("clock")

    def _timings(self, agent: int) -> Path:
        return self._in_directory(f"timings-{agent}")

    def _in_directory(self, name: str) -> Path:
        if self._directory is None:
            raise BadRequestError("the agents have not been started")
        return self._directory / name

    def _command(self, agent: int, name: str) -> list[str]:
        host = "127.0.0.1" if self._network is None else self._network.hosts[agent]
        options = {
            "--name": name,
            "--host": host,
            "--place": str(self._places[agent]),
            "--pipeline": str(self._pipeline),
            "--clock": str(self._clock_file),
            "--timings": str(self._timings(agent)),
        }
        command = [
            *module_command("flowedge_testbed.paced.agent"),
            *(f"{key}={to}" for key, to in options.items()),
        ]
        return command if self._network is None else self._network.enter(agent, command)
