"""The emulated device that one agent of a paced pipeline is held to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, ForwardBatch, OpenCache, StageJob
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE, route_lines
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.events import TARGET
from flowedge_testbed.emulation.changing_costs import ChangingCosts, Events
from flowedge_testbed.paced.run_clock import RunClock
from flowedge_testbed.paced.timings import JobTiming, TimingLog


@dataclass(frozen=True)
class PacedPipeline:
    """The emulated pipeline that agents read from a file.

    Attributes:
        seed: added to the seed of each link's jitter.
        shaped: whether the network holds messages to the links' rates.
        events: that change the pipeline in the middle of each run.
    """

    emulation: PipelineProfile
    seed: int
    shaped: bool
    events: Events = ()

    def write(self, path: Path) -> None:
        """Write the pipeline to a file, whole or not at all."""
        part = path.with_suffix(".part")
        part.write_bytes(_PIPELINE.dump_json(self))
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> PacedPipeline:
        """Return the pipeline that `write` wrote.

        Raises:
            BadRequestError: when the file cannot be read, or holds something else.
        """
        try:
            return _PIPELINE.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise BadRequestError(f"{path}: no emulated pipeline: {error}") from error


_PIPELINE = TypeAdapter(PacedPipeline)


class DevicePacing:
    """An EmulatedDevice by the profile of the device at `place` (see planning/virtual_pipeline.py).

    What the draft node receives comes with the latency of the links of the target's route, also where a
    middle model sent it: a message does not say which link of the emulation it came over.
    """

    def __init__(self, pipeline: PacedPipeline, place: int, log: TimingLog, clock: RunClock) -> None:
        """clock: of the runs, by which the pipeline's events happen."""
        self.shaped = pipeline.shaped
        costs = ProfileCosts(pipeline.emulation, pipeline.seed)
        self._costs = ChangingCosts(costs, pipeline.events, clock.seconds) if pipeline.events else costs
        self.row_bytes = self._costs.row_bytes(place)
        self._place = place
        self._log = log
        lines = route_lines(pipeline.emulation.num_stages, pipeline.emulation.side_counts)
        own = next((line for line in lines.values() if place in line), lines[TARGET])
        # A reply comes over the link out of its sender, the device after this one.
        before, after = own[-1], own[0]
        if place != DRAFT_NODE:
            around, at = [DRAFT_NODE, *own, own[-1]], 1 + own.index(place)
            before, after = around[at - 1], around[at + 1]
        self._senders = {LinkKind.IN_BAND: before, LinkKind.EXPRESS: DRAFT_NODE, LinkKind.REPLY: after}

    def job(self, job: StageJob | DraftJob) -> float:
        if isinstance(job, ForwardBatch | OpenCache):
            return self._costs.stage_job(self._place, job)
        return self._costs.draft_job(job)

    def layer(self, job: ForwardBatch) -> float:
        return self._costs.layer(self._place, job)

    def transfer(self, message: Message) -> float:
        return self._costs.transfer(self._place, message)

    def latency(self, kind: LinkKind) -> float:
        return self._costs.latency(self._senders[kind])

    def ran(self, timing: JobTiming) -> None:
        self._log.add(timing)
