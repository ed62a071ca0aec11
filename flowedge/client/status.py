"""What a draft node serves, and its requests."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.client.device import Device
from flowedge.core.errors import ProtocolError
from flowedge.v1 import generation_pb2 as pb


@dataclass(frozen=True)
class DraftNodeStatus:
    """What a draft node serves, and its requests.

    Attributes:
        device: the draft node, with its pipeline's model, stages and drafter.
        running, waiting: numbers of requests.
        tokens_per_s: of all requests, over the last seconds.
        tokens_per_segment: mean number of tokens put out for each segment with draft rows, likewise.
    """

    device: Device
    running: int
    waiting: int
    tokens_per_s: float
    tokens_per_segment: float

    @classmethod
    def of(cls, device: Device, activity: pb.PipelineActivity) -> DraftNodeStatus:
        """Read the first message of a watched pipeline.

        Raises:
            ProtocolError: when the message does not hold the state of the pipeline.
        """
        if not activity.HasField("state"):
            raise ProtocolError("the draft node sent no state of its pipeline")
        state = activity.state
        return cls(device, state.running, state.waiting, state.tokens_per_s, state.tokens_per_segment)
