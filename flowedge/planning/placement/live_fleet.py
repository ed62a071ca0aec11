"""The agents that are there, as devices of a fleet: what each measures of a model, once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

from flowedge.core.errors import FlowEdgeError
from flowedge.core.pipeline_config import Quantisation
from flowedge.network.address import split_address
from flowedge.planning.measuring.measure import measure_sizes
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.measured_profiles import device_profile
from flowedge.planning.profile.measurement import DeviceMeasurement, MeasureOptions
from flowedge.planning.profile.model import EagleSize, ModelProfile

REPEATS, STACK_MIB = 3, 64  # of a measurement that takes seconds
HEAD_ROOM = 0.9  # share of the memory that is available, which a plan uses


class DescribedDevice(Protocol):
    """What an agent says of itself, as far as a plan needs it."""

    @property
    def name(self) -> str: ...

    @property
    def memory_available(self) -> int: ...


class OnNews(Protocol):
    """Is told what a device is doing."""

    async def __call__(self, device: str, text: str) -> None: ...


def measure_options(sizes: ModelProfile, quant: Quantisation) -> MeasureOptions:
    """Return the options by which a device measures a model; the model's name makes no difference."""
    drafters = {"eagle": EagleSize(kind="eagle")}
    plain = sizes.model_copy(update={"title": "the model", "source": "", "drafters": drafters})
    return MeasureOptions(
        model="sizes", quant=quant, dtype=sizes.dtype, repeats=REPEATS, stack_mib=STACK_MIB, sizes=plain
    )


def profile_of_measured(found: DeviceMeasurement, memory_bytes: float) -> DeviceProfile:
    """Return the profile of a device that has measured a model, with this memory."""
    changes = {"memory_gib": max(memory_bytes, 1.0) / 2**30, "dequantise_gweights_s": "hidden"}
    return device_profile(found).profile.model_copy(update=changes)


def usable_bytes(available: int, reserve_bytes: int) -> float:
    """Return the bytes of memory that a plan uses of those that are available on a device."""
    return HEAD_ROOM * available - reserve_bytes


async def live_devices(
    devices: Mapping[str, DescribedDevice],
    options: MeasureOptions,
    report: OnNews,
    *,
    reserve_bytes: int = 0,
    only_stored: bool = False,
) -> dict[str, DeviceProfile]:
    """Return the devices of agents, by their addresses; one that did not measure the model is left out.

    Agents of one host measure one after the other, so that none takes the other's time.

    Args:
        reserve_bytes: of each device that a plan does not use, beside the head room.
        only_stored: whether nothing is measured now.
    """
    found = dict[str, DeviceProfile]()

    async def measure(address: str) -> None:
        device = devices[address]
        if not only_stored:
            await report(device.name, "measures how fast it computes this model, unless it did before")
        try:
            measured = await measure_sizes(address, options, only_stored=only_stored)
        except FlowEdgeError as error:
            await report(device.name, f"is not in the plan, since it did not measure the model: {error}")
            return
        if measured is not None:
            usable = usable_bytes(device.memory_available, reserve_bytes)
            found[address] = profile_of_measured(measured, usable)

    async def measure_host(addresses: Sequence[str]) -> None:
        for address in addresses:
            await measure(address)

    hosts = [list(group) for _, group in groupby(sorted(devices, key=_host), key=_host)]
    await asyncio.gather(*map(measure_host, hosts))
    return {address: found[address] for address in devices if address in found}


def _host(address: str) -> str:
    return split_address(address)[0]
