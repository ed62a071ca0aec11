"""What slows a device down: heat, a lack of power, or firmware that lowers a clock.

Readings are of files of the kernel. Whether the device is slowed down for longer is decided from them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowedge.device.board.clock_rates import cpu_rates
from flowedge.device.board.sysfs import number_in, text_in

HOLD_S = 4.0  # for which a device is slowed down before it is told: clocks dip for moments anywhere
CLEAR_S = 30.0  # without a slowdown, after which the device is told to be as fast as before
# Kinds of the kernel's cooling devices that slow a processor down, unlike a fan.
_COOLERS = ("cpufreq", "devfreq", "thermal-cpufreq", "thermal-devfreq", "cpu-throttle", "gpu-throttle")
# Of a Raspberry Pi's firmware: the lowest bits of its state, which say what holds now.
_FIRMWARE = ("undervoltage", "capped clock", "throttling", "soft temperature limit")
_FIRMWARE_STATES = (
    "sys/devices/platform/soc/soc:firmware/get_throttled",
    "sys/devices/platform/soc*/*firmware/get_throttled",
)
_PI_VOLTAGE = "rpi_volt"  # the driver that watches the voltage of a Raspberry Pi
_OVER_CURRENT = "soctherm_oc"  # the driver that counts a Jetson's throttling by over-current


@dataclass(frozen=True)
class Slowdowns:
    """One reading.

    Attributes:
        causes: what slows the device down now, such as "cpufreq-cpu0" or "undervoltage", in order.
        events: how often something slowed it down since it was started, by cause.
    """

    causes: tuple[str, ...] = ()
    events: Mapping[str, int] = field(default_factory=dict)


def read_slowdowns(root: Path = Path("/")) -> Slowdowns:
    """Read some twenty small files, without a process; what a device does not have is left out.

    root: the directory with /sys.
    """
    causes = {*_coolers(root), *_firmware(root), *_low_voltage(root), *_short_clocks(root)}
    return Slowdowns(tuple(sorted(causes)), dict(_events(root)))


def _coolers(root: Path) -> Iterator[str]:
    for cooler in root.glob("sys/class/thermal/cooling_device*"):
        kind = text_in(cooler / "type")
        if kind.startswith(_COOLERS) and number_in(cooler / "cur_state"):
            yield kind


def _firmware(root: Path) -> Iterator[str]:
    """What a Raspberry Pi's firmware does now. The kernel's own clock does not show it."""
    for file in {file for pattern in _FIRMWARE_STATES for file in root.glob(pattern)}:
        text = text_in(file).lower().removeprefix("0x")
        state = int(text, 16) if text and set(text) <= set("0123456789abcdef") else 0
        yield from (cause for bit, cause in enumerate(_FIRMWARE) if state >> bit & 1)


def _low_voltage(root: Path) -> Iterator[str]:
    for monitor in root.glob("sys/class/hwmon/hwmon*"):
        if text_in(monitor / "name") == _PI_VOLTAGE and number_in(monitor / "in0_lcrit_alarm"):
            yield _FIRMWARE[0]


def _short_clocks(root: Path) -> Iterator[str]:
    """Clocks of processors that are below the rate at which the kernel holds all of them.

    If one group of processors has its rate, the others are not slowed down but idle.
    """
    held = [rate for rate in cpu_rates(root) if rate.is_held]
    if held and all(rate.is_short for rate in held):
        yield from (f"{rate.name} below its clock" for rate in held)


def _events(root: Path) -> Iterator[tuple[str, int]]:
    for monitor in root.glob("sys/class/hwmon/hwmon*"):
        if text_in(monitor / "name") == _OVER_CURRENT:
            counts = [number_in(file) or 0 for file in monitor.glob("oc*_event_cnt")]
            yield "over-current", sum(counts)
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/package_throttle_count")
    counts = [count for file in files if (count := number_in(file)) is not None]
    if counts:  # of processors of Intel, each of which has its package's
        yield "heat of the processor", max(counts)


@dataclass(frozen=True)
class Throttling:
    """What several readings say: whether the device is slowed down, and not for a moment only.

    Attributes:
        causes: of the last reading that had any.
        since, until: when the first and the last of these readings were taken, in seconds of one clock; None
            before there is one.
    """

    causes: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """For how long the device has been slowed down."""
        return 0.0 if self.since is None or self.until is None else self.until - self.since

    @property
    def is_on(self) -> bool:
        return self.seconds >= HOLD_S

    def after(self, reading: Slowdowns, now: float) -> Throttling:
        """Return what is known with one more reading, taken at `now`."""
        risen = [cause for cause, count in reading.events.items() if count > self.events.get(cause, count)]
        causes = tuple(sorted({*reading.causes, *risen}))
        if causes:
            since = now if self.since is None else self.since
            return Throttling(causes, since, now, reading.events)
        if self.until is not None and now - self.until < CLEAR_S:
            return replace(self, events=reading.events)
        return Throttling(events=reading.events)

    def __str__(self) -> str:
        """What slows the device down, in words; "" where nothing does."""
        return ", ".join(self.causes) if self.is_on else ""
