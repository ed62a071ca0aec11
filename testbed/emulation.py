"""An emulated pipeline: which model, on which devices, over which links."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.errors import BadRequestError
from testbed.profiles.device import DeviceProfile
from testbed.profiles.link import LinkProfile
from testbed.profiles.model import EagleSize, ModelProfile, Quantisation, SmallModelSize


@dataclass(frozen=True)
class Emulation:
    """Everything that time and memory depend on.

    Attributes:
        split: layers of each stage; stages: their devices.
        links: link i leaves stage i; links[-1], which is the last, leaves the draft node.
    """

    model: ModelProfile
    quant: Quantisation
    drafter: EagleSize | SmallModelSize
    draft_node: DeviceProfile
    stages: tuple[DeviceProfile, ...]
    links: tuple[LinkProfile, ...]
    split: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.split) != len(self.stages):
            raise BadRequestError(f"a split for {len(self.split)} stages, but there are {len(self.stages)}")
        if sum(self.split) != self.model.layers or min(self.split) < 1:
            raise BadRequestError(
                f"the split {list(self.split)} is not the {self.model.layers} layers of {self.model.title}, "
                "at least one a stage"
            )
        if len(self.links) != len(self.stages) + 1:
            raise BadRequestError(f"{len(self.links)} links for {len(self.stages)} stages and a draft node")
        for device in (self.draft_node, *self.stages):
            if self.quant not in ("none", "int4") and device.dequantise_gweights_s is None:
                raise BadRequestError(
                    f"{device.title} has no dequantise_gweights_s, so it runs no {self.quant}"
                )


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as they go; the first ones get those left over."""
    if not 1 <= stages <= layers:
        raise BadRequestError(f"{layers} layers cannot be split over {stages} stages")
    share, left = divmod(layers, stages)
    return tuple(share + (index < left) for index in range(stages))
