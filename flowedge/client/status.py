"""What a draft node serves, and its requests."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.client.device import Device
from flowedge.core.errors import DeviceError


@dataclass(frozen=True)
class DraftNodeStatus:
    """What a draft node serves, and its requests.

    Attributes:
        quant: of the layers; drafter: the names of the drafters as one text.
        stages: number of stages.
        running, waiting: numbers of requests that are served, and that wait for room.
        context_tokens: most tokens of a prompt with its answer; 0 if not known.
    """

    name: str
    model: str
    quant: str
    drafter: str
    stages: int
    running: int
    waiting: int
    context_tokens: int

    @classmethod
    def of(cls, device: Device) -> DraftNodeStatus:
        """Read a device's description.

        Raises:
            DeviceError: when the device is not the draft node of a pipeline.
        """
        if not device.stage_addresses:
            raise DeviceError(device.name, "it is not a draft node; ask the draft node of a pipeline")
        return cls(
            name=device.name,
            model=device.model,
            quant=device.quant,
            drafter=device.drafter,
            stages=len(device.stage_addresses),
            running=device.sessions,
            waiting=device.waiting,
            context_tokens=device.context_tokens,
        )
