"""Temperatures that the device reports."""

from __future__ import annotations

from pathlib import Path

import psutil

from flowedge.device.board.sysfs import number_in, text_in

_ZONES = Path("/sys/class/thermal")


def temperatures(zones: Path = _ZONES) -> dict[str, float]:
    """Return degrees Celsius by thermal zone, such as "cpu-thermal" and "gpu-thermal" on a Jetson.

    A zone that cannot be read, such as that of a part without power, is left out. Of several zones of one
    name the hottest counts. Without zones, the sensors that the system lists by chip are returned.

    zones: directory of the kernel's thermal zones.
    """
    found: dict[str, float] = {}
    for zone in sorted(zones.glob("thermal_zone*")):
        name, thousandths = text_in(zone / "type"), number_in(zone / "temp")
        if not name or thousandths is None:
            continue
        celsius = thousandths / 1000
        found[name] = max(celsius, found.get(name, celsius))
    return found or _of_chips()


def hottest(zones: Path = _ZONES) -> float | None:
    """Return the highest of the temperatures, in degrees Celsius; None where the device reports none."""
    return max(temperatures(zones).values(), default=None)


def _of_chips() -> dict[str, float]:
    if not hasattr(psutil, "sensors_temperatures"):  # only Linux and FreeBSD have it
        return {}
    chips = psutil.sensors_temperatures()
    return {chip: max(sensor.current for sensor in sensors) for chip, sensors in chips.items() if sensors}
