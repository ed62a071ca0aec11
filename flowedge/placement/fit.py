"""How many equal devices a model needs, and what fits on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.placement.split import even_split, layer_ranges


@dataclass(frozen=True)
class Demand:
    """The bytes that a model takes on the devices of a pipeline.

    Attributes:
        layers: for each layer, its weights with its keys and values of the whole context.
        first, last: what the first and the last stage hold beside their layers.
        head: what the draft node holds, without a drafter.
    """

    layers: Sequence[int]
    first: int
    last: int
    head: int

    def stage_bytes(self, start: int, stop: int) -> int:
        """Return the bytes of a stage with layers [start, stop)."""
        total = sum(self.layers[start:stop])
        if start == 0:
            total += self.first
        if stop == len(self.layers):
            total += self.last
        return total


@dataclass(frozen=True)
class Placement:
    """Layers of each stage and their bytes; `fits` is whether all devices, D0 included, have the memory."""

    split: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    fits: bool


def place(demand: Demand, devices: int, memory: int) -> Placement | None:
    """Split a model evenly over one draft node and devices - 1 stages of `memory` bytes each.

    Returns None when there is no stage, or a stage would have no layer.
    """
    stages = devices - 1
    if not 1 <= stages <= len(demand.layers):
        return None
    split = even_split(len(demand.layers), stages)
    sizes = tuple(demand.stage_bytes(start, stop) for start, stop in layer_ranges(split))
    return Placement(tuple(split), sizes, max(*sizes, demand.head) <= memory)


def least_devices(demand: Demand, memory: int) -> int | None:
    """Return how many devices are needed, the draft node included; None when no number is enough."""
    for devices in range(2, len(demand.layers) + 2):
        placement = place(demand, devices, memory)
        if placement is not None and placement.fits:
            return devices
    return None


def most_layers(demand: Demand, memory: int) -> int:
    """Return how many of the largest layers fit on a stage that is neither the first nor the last."""
    count, used = 0, 0
    for size in sorted(demand.layers, reverse=True):
        used += size
        if used > memory:
            break
        count += 1
    return count
