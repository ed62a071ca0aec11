"""The electrical power that a board draws, by its own monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowedge.device.board.sysfs import number_in, text_in

_MONITORS = Path("/sys/bus/i2c/drivers/ina3221")
_WHOLE = "VDD_IN"  # rail of the whole module, on Orin Nano and NX
# Of AGX Orin, which has no such rail. The memory's rail is fed from the last of these, so it does not count.
_PARTS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


def rails(monitors: Path = _MONITORS) -> dict[str, float]:
    """Return the watts of each rail that INA3221 monitors measure, as on a Jetson; none elsewhere.

    A channel without a label, or that cannot be read, is left out.

    monitors: directory of the kernel's driver, with a directory for each monitor.
    """
    return {
        name: watts for sensor in sorted(monitors.glob("*/hwmon/hwmon*")) for name, watts in _rails(sensor)
    }


def board_power(monitors: Path = _MONITORS) -> float | None:
    """Return the watts of the whole board: of its input rail, or of the parts of an AGX Orin.

    None where the board does not tell.
    """
    found = rails(monitors)
    if _WHOLE in found:
        return found[_WHOLE]
    return sum(found[part] for part in _PARTS) if all(part in found for part in _PARTS) else None


def _rails(sensor: Path) -> Iterator[tuple[str, float]]:
    for label in sorted(sensor.glob("in*_label")):
        channel = label.name.removeprefix("in").removesuffix("_label")
        name, millivolts = text_in(label), number_in(sensor / f"in{channel}_input")
        milliamperes = number_in(sensor / f"curr{channel}_input")
        if name and millivolts is not None and milliamperes is not None:
            yield name, millivolts * milliamperes / 1e6
