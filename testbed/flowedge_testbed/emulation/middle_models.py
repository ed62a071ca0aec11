"""The middle models of a PipeSpec hierarchy: their sizes, their devices and their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.device import DeviceProfile
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import LayerSize, ModelProfile, SmallModelSize
from flowedge_testbed.emulation.place import Devices, Emulated
from flowedge_testbed.profiles import library

_PARTS = ("size", "device", "link")


@dataclass(frozen=True)
class EmulatedMiddle:
    """A middle model that runs whole on one device; `link` leaves that device."""

    size: SmallModelSize
    device: DeviceProfile
    link: LinkProfile

    def sizes(self, prose: set[str]) -> dict[str, Any]:
        """Return all its numbers; `prose` are the fields to leave out."""
        return {part: getattr(self, part).model_dump(exclude=prose) for part in _PARTS}

    def memory_parts(self, stored_bytes: int, capacity: int, activation_rows: int) -> dict[str, float]:
        """Return the bytes that its device holds, by part.

        Args:
            stored_bytes: of a weight and of a KV element.
            capacity: rows of one session's KV cache.
            activation_rows: rows whose widest activations are held at once.
        """
        size, layer = self.size, LayerSize.of(self.size, stored_bytes)
        return {
            f"{size.layers} layers": float(size.layers * layer.weights * stored_bytes),
            "embedding and LM head": float(2 * size.vocab * size.hidden * stored_bytes),
            f"KV of {capacity} rows": float(size.layers * layer.kv_bytes_per_row * capacity),
            "activations": float(activation_rows * size.intermediate * stored_bytes),
        }


def emulated_middles(
    devices: Devices,
    num_middles: int,
    model: ModelProfile,
    emulated: Emulated,
    link_of: Callable[[str], LinkProfile],
    beside: Path,
) -> tuple[EmulatedMiddle, ...]:
    """Return the emulated middle models of a scenario, the smallest first.

    Args:
        num_middles: middle models that compute.
        link_of: gives the link that leaves the device of a name (m1, m2, ...).
        beside: the directory that .yaml names are relative to.

    Raises:
        BadRequestError: when a middle model has no size or no device.
    """
    counts = num_middles, len(devices.middles), len(emulated.middles)
    if len(set(counts)) > 1:
        raise BadRequestError(
            f"the pair has {counts[0]} middle models (--middle DIR,...), devices.middles {counts[1]} devices "
            f"and emulated.middles {counts[2]} sizes: they must be as many"
        )
    sized = zip(emulated.middles, devices.middles, strict=True)
    return tuple(
        EmulatedMiddle(_size(model, size), library.device(device, beside), link_of(f"m{number}"))
        for number, (size, device) in enumerate(sized, start=1)
    )


def _size(model: ModelProfile, named: str) -> SmallModelSize:
    size = model.drafters.get(named)
    if not isinstance(size, SmallModelSize):
        known = [name for name, each in model.drafters.items() if isinstance(each, SmallModelSize)]
        raise BadRequestError(
            f"{model.title} has no small_lm {named!r} among its drafters; it has {', '.join(known) or 'none'}"
        )
    return size
