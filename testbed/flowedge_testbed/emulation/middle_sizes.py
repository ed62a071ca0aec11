"""Which sizes and devices the middle models of a pair are priced by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import ModelProfile, SmallModelSize
from flowedge_testbed.emulation.emulation import EmulatedMiddle
from flowedge_testbed.profiles import library
from flowedge_testbed.scenario import Devices, Emulated, ModelSetNames


def emulated_middles(
    devices: Devices,
    pair: ModelSetNames,
    model: ModelProfile,
    emulated: Emulated,
    link_of: Callable[[str], LinkProfile],
    beside: Path,
) -> tuple[EmulatedMiddle, ...]:
    """The middle models of a pair, smallest first; `link_of` gives the link that leaves a device.

    Raises BadRequestError unless each has a size and a device.
    """
    counts = len(pair.middles), len(devices.middles), len(emulated.middles)
    if len(set(counts)) > 1:
        raise BadRequestError(
            f"the pair has {counts[0]} middle models (--middle DIR,...), devices.middles {counts[1]} devices "
            f"and emulated.middles {counts[2]} sizes: they must be as many"
        )
    named = zip(emulated.middles, devices.middles, strict=True)
    return tuple(
        EmulatedMiddle(_size(model, size), library.device(device, beside), link_of(f"m{number}"))
        for number, (size, device) in enumerate(named, start=1)
    )


def _size(model: ModelProfile, named: str) -> SmallModelSize:
    size = model.drafters.get(named)
    if not isinstance(size, SmallModelSize):
        known = [name for name, each in model.drafters.items() if isinstance(each, SmallModelSize)]
        raise BadRequestError(
            f"{model.title} has no small_lm {named!r} among its drafters; it has {', '.join(known) or 'none'}"
        )
    return size
