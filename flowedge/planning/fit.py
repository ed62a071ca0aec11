"""What fits in memory: a part of a model on this device, and a whole model on equal devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.device.memory import (
    AvailableMemory,
    MemorySettings,
    gib,
    read_available_memory,
    require_memory,
)
from flowedge.planning.split import even_split, layer_ranges


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


def placement_of(demand: Demand, devices: int, memory: int) -> Placement | None:
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
        placement = placement_of(demand, devices, memory)
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


ADVICE = (
    "free memory there, give it fewer layers or a smaller quantisation, or lower memory.kv_tokens or "
    "memory.reserve_gib of its configuration"
)


def admit(
    what: str,
    device: str,
    *,
    weights: int,
    row_bytes: int,
    max_rows: int,
    settings: MemorySettings,
    memory: AvailableMemory | None = None,
) -> None:
    """Check that this device holds weights, the KV cache that the settings ask for, and the reserve.

    Args:
        what: the part of a model, as the subject of a sentence.
        weights: bytes of the weights.
        row_bytes: bytes of the KV cache for one token.
        max_rows: the longest context of the model, in tokens.
        memory: what is available; read now if None.

    Raises:
        CapacityError: when they do not fit, with the sums.
    """
    memory = memory or read_available_memory(settings)
    rows = min(settings.kv_tokens, max_rows)
    parts = {
        "weights": weights,
        f"KV cache for {rows} tokens": rows * row_bytes,
        "reserve": settings.reserve_bytes,
    }
    supply = f"{gib(memory.available)} of {gib(memory.total)} are available, by {memory.bound}"
    require_memory(f"{what} does not fit on device {device}", parts, memory.available, supply, ADVICE)


def session_rows(row_bytes: int, settings: MemorySettings, memory: AvailableMemory | None = None) -> int:
    """Return the cache rows that fit in free memory beside the reserve, at least 1.

    memory: what is available; read now if None.
    """
    memory = memory or read_available_memory(settings)
    free = memory.available - settings.reserve_bytes
    return max(1, free // row_bytes)
