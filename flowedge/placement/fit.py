"""What of a model fits on how many equal devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.placement.split import even_split, layer_ranges


@dataclass(frozen=True)
class Demand:
    """The bytes a model takes on the stages of a pipeline.

    Attributes:
        layers: of each layer, its weights and its keys and values of the whole context.
        first, last: beside its layers, of the first and the last stage.
        head: of the draft node, drafter not counted.
    """

    layers: Sequence[int]
    first: int
    last: int
    head: int

    def stage_bytes(self, start: int, stop: int) -> int:
        """Of a stage with layers [start, stop)."""
        total = sum(self.layers[start:stop])
        if start == 0:
            total += self.first
        if stop == len(self.layers):
            total += self.last
        return total


@dataclass(frozen=True)
class Placement:
    """Layers of each stage and the bytes they take; `fits` says whether every device, D0 too, has room."""

    split: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    fits: bool


def place(demand: Demand, devices: int, memory: int) -> Placement | None:
    """The even split over one draft node and devices - 1 stages of `memory` bytes each.

    None when there are not as many layers as stages, or no stage at all.
    """
    stages = devices - 1
    if not 1 <= stages <= len(demand.layers):
        return None
    split = even_split(len(demand.layers), stages)
    sizes = tuple(demand.stage_bytes(start, stop) for start, stop in layer_ranges(split))
    return Placement(tuple(split), sizes, max(*sizes, demand.head) <= memory)


def least_devices(demand: Demand, memory: int) -> int | None:
    """How many devices are needed, the draft node among them; None when no number is enough."""
    for devices in range(2, len(demand.layers) + 2):
        placement = place(demand, devices, memory)
        if placement is not None and placement.fits:
            return devices
    return None


def most_layers(demand: Demand, memory: int) -> int:
    """How many layers a device takes that is neither the first stage nor the last; of the largest ones."""
    count, used = 0, 0
    for size in sorted(demand.layers, reverse=True):
        used += size
        if used > memory:
            break
        count += 1
    return count
