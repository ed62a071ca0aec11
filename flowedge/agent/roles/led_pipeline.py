"""What it takes to lead a pipeline, and when the standby of its draft node does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb

LOST_AFTER_S = 2.0  # a draft node that its service manager starts again answers by then


@dataclass(frozen=True, eq=False)
class LedPipeline:
    """What a device knows of a pipeline that it leads, or stands by to lead.

    Attributes:
        request: for the role of its draft node.
        origin: see PipelineRole; owner: see PipelineRole.
    """

    request: pb.DraftNodeRole
    origin: str
    owner: str | None

    def with_stages(self, stages: tuple[str, ...], pipeline: str) -> pb.DraftNodeRole:
        """Return the request for the same pipeline under another id.

        Its layers are divided anew if the number of stages is another one.
        """
        request = pb.DraftNodeRole()
        request.CopyFrom(self.request)
        request.pipeline = pipeline
        if len(stages) != len(request.stages):
            request.config = PipelineConfig.from_json(request.config).changed(split=()).to_json()
        request.stages[:] = stages
        return request


class StandbyStep(Enum):
    """What a standby does next."""

    WAIT = auto()
    FORGET = auto()  # the pipeline is not to be led any more
    LEAD = auto()


@dataclass(frozen=True, eq=False)
class Standby:
    """That the device leads a pipeline when its draft node is lost.

    Attributes:
        led: the pipeline; the standby in its request is the draft node itself.
        instance: of the draft node, as in its Device.
        heard: when it answered last, on time.monotonic().
        due: whether the device is to lead the pipeline now.
    """

    led: LedPipeline
    instance: str
    heard: float
    due: bool = False

    @property
    def address(self) -> str:
        """Of the draft node."""
        return self.led.request.standby

    def after(self, answer: pb.Device | None, now: float) -> Standby | None:
        """Return what the device stands by for once the draft node was asked what it is; None: for nothing.

        answer: None when it did not answer.
        """
        match next_step(answer, self.instance, now - self.heard):
            case StandbyStep.LEAD:
                return replace(self, due=True)
            case StandbyStep.FORGET:
                return None
            case StandbyStep.WAIT:
                return self if answer is None else replace(self, heard=now)


def next_step(answer: pb.Device | None, instance: str, silent_s: float) -> StandbyStep:
    """Return what a standby does.

    Args:
        answer: what the draft node says of itself; None when it does not answer.
        instance: of the draft node that had led the pipeline.
        silent_s: seconds since it answered last.
    """
    if answer is None:
        return StandbyStep.LEAD if silent_s > LOST_AFTER_S else StandbyStep.WAIT
    if answer.stage_addresses or answer.not_ready:  # it leads, or is about to
        return StandbyStep.WAIT
    # The same process has given the role up, as somebody wanted. Another one does not know of the pipeline.
    return StandbyStep.FORGET if answer.instance == instance else StandbyStep.LEAD
