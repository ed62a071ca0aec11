"""The Pacing of one emulated device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, Forward, StageJob
from flowedge.live.pacing import JobTiming, Way
from flowedge.simulate.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.costs.profile_costs import ProfileCosts
from flowedge_testbed.emulation.emulation import Emulation
from flowedge_testbed.paced.timings import TimingLog

FIRST_STAGE = 0


@dataclass(frozen=True)
class PacedPipeline:
    """What the agents of a pipeline are told, through a file.

    Attributes:
        seed: added to that of each link's jitter.
        shaped: whether the network holds messages to the links' rates.
    """

    emulation: Emulation
    seed: int
    shaped: bool

    def write(self, path: Path) -> None:
        """Put it in a file, whole or not at all."""
        part = path.with_suffix(".part")
        part.write_bytes(_PIPELINE.dump_json(self))
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> PacedPipeline:
        """What `write` put there. BadRequestError when it cannot be read."""
        try:
            return _PIPELINE.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise BadRequestError(f"{path}: no emulated pipeline: {error}") from error


_PIPELINE = TypeAdapter(PacedPipeline)


class DevicePacing:
    """The Pacing (see live/pacing.py) of the device at `place`: DRAFT_NODE, or its stage from 0 on."""

    def __init__(self, pipeline: PacedPipeline, place: int, log: TimingLog) -> None:
        self.shaped = pipeline.shaped
        self._costs = ProfileCosts(pipeline.emulation, pipeline.seed)
        self.row_bytes = self._costs.row_bytes(place)
        self._place = place
        self._log = log
        last = len(pipeline.emulation.stages) - 1
        before = {DRAFT_NODE: last, FIRST_STAGE: DRAFT_NODE}.get(place, place - 1)
        # What comes back took the link out of its sender, the device after.
        after = FIRST_STAGE if place == DRAFT_NODE else min(place + 1, last)
        self._senders = {Way.IN_BAND: before, Way.EXPRESS: DRAFT_NODE, Way.REPLY: after}

    def stage_job(self, job: StageJob) -> float:
        return self._costs.stage_job(self._place, job)

    def layer(self, job: Forward) -> float:
        return self._costs.layer(self._place, job)

    def draft_job(self, job: DraftJob) -> float:
        return self._costs.draft_job(job)

    def transfer(self, message: Message) -> float:
        return self._costs.transfer(self._place, message)

    def latency(self, way: Way) -> float:
        return self._costs.latency(self._senders[way])

    def ran(self, timing: JobTiming) -> None:
        self._log.add(timing)
