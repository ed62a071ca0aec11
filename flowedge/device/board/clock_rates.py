"""The clocks of the processors and of memory, as the kernel's files say them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowedge.device.board.sysfs import number_in, text_in

SHORTFALL = 0.9  # of a rate, below which a clock is lower than that rate and not merely near it
# Of the kernel's devfreq devices, the GPU and, where it is one, the memory (dmc). Others are of video units.
_DEVICES = re.compile(r"gpu|ga10b|gv11b|mali|dmc|emc")
_MEMORY = "sys/kernel/debug/bpmp/debug/clk/emc"  # of a Jetson; root alone can read it
# These drivers let the processor choose: their governor powersave is not the lowest rate.
_SELF_CHOOSING = ("intel_pstate", "amd-pstate", "amd-pstate-epp")


@dataclass(frozen=True)
class ClockRate:
    """A clock, with rates in Hz.

    Attributes:
        name: "cpu0-3", or the name of the kernel's device, such as "17000000.gpu".
        now: the present rate.
        lowest, highest: the bounds within which the kernel may choose it now; `lowest` is 0 if unknown.
        hardware: the highest rate of the hardware; 0 where the kernel does not say.
        governor: what chooses the rate; "" where that is not known or is the processor itself.
    """

    name: str
    now: int
    lowest: int
    highest: int
    hardware: int = 0
    governor: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the kernel keeps the clock at its highest rate, so that only hardware can lower it."""
        return bool(self.governor) and (self.governor == "performance" or self.lowest == self.highest)

    @property
    def is_short(self) -> bool:
        """Whether the clock is held and yet slower than its highest rate."""
        return self.is_held and self.now < SHORTFALL * self.highest

    def __str__(self) -> str:
        beyond = f" (hardware {self.hardware / 1e6:.0f})" if self.hardware > self.highest else ""
        return f"{self.name} {self.now / 1e6:.0f} of {self.highest / 1e6:.0f} MHz{beyond}"


def clock_rates(root: Path = Path("/")) -> list[ClockRate]:
    """Return the clocks that can be read, processors first; none on a virtual machine.

    root: the directory with /sys.
    """
    return [*cpu_rates(root), *_device_rates(root), *_memory_rate(root)]


def cpu_rates(root: Path = Path("/")) -> list[ClockRate]:
    """Return the clock of each group of processors that have one together."""
    found = []
    for policy in sorted(root.glob("sys/devices/system/cpu/cpufreq/policy*")):
        kilohertz = [
            number_in(policy / name)
            for name in ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")
        ]
        now, lowest, highest, hardware = (1000 * rate if rate is not None else 0 for rate in kilohertz)
        if not now or not highest:
            continue
        chooses = text_in(policy / "scaling_driver") in _SELF_CHOOSING
        governor = "" if chooses else text_in(policy / "scaling_governor")
        found.append(ClockRate(_processors(policy), now, lowest, highest, hardware, governor))
    return found


def _processors(policy: Path) -> str:
    """The name of a group of processors, such as "cpu0-3"."""
    numbers = text_in(policy / "related_cpus").split() or [policy.name.removeprefix("policy")]
    return f"cpu{numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else "")


def _device_rates(root: Path) -> Iterator[ClockRate]:
    for device in sorted(root.glob("sys/class/devfreq/*")):
        if not _DEVICES.search(device.name):
            continue
        now, lowest, highest = (number_in(device / name) for name in ("cur_freq", "min_freq", "max_freq"))
        if not now or not highest:
            continue
        rates = [int(rate) for rate in text_in(device / "available_frequencies").split() if rate.isdigit()]
        governor = text_in(device / "governor")
        yield ClockRate(device.name, now, lowest or 0, highest, max(rates, default=0), governor)


def _memory_rate(root: Path) -> Iterator[ClockRate]:
    now, highest = number_in(root / _MEMORY / "rate"), number_in(root / _MEMORY / "max_rate")
    if now and highest:
        yield ClockRate("memory", now, 0, highest)


def fast_cores(root: Path = Path("/")) -> int | None:
    """Return how many processors are about as fast as the fastest; None where the kernel does not rate them.

    On an RK3588 these are four of eight. A processor counts from three quarters of the highest capacity on.
    """
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpu_capacity")
    capacities = [capacity for file in files if (capacity := number_in(file))]
    return sum(4 * each >= 3 * max(capacities) for each in capacities) if capacities else None
