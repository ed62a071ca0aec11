"""The power of a board, read from files as the INA3221 driver of a Jetson has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.device.board.power import board_power, rails

NANO = {"1-0040": [("VDD_IN", 5048, 1520), ("VDD_CPU_GPU_CV", 5048, 480), ("VDD_SOC", 5048, 400)]}
AGX = {
    "1-0040": [("VDD_GPU_SOC", 12_000, 500), ("VDD_CPU_CV", 12_000, 250), ("VIN_SYS_5V0", 5_000, 900)],
    "1-0041": [("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5_000, 100)],
}


def monitors(directory: Path, chips: dict[str, list[tuple[str, int, int]]]) -> Path:
    for number, (chip, channels) in enumerate(chips.items()):
        sensor = directory / chip / "hwmon" / f"hwmon{number}"
        sensor.mkdir(parents=True)
        for channel, (name, millivolts, milliamperes) in enumerate(channels, start=1):
            (sensor / f"in{channel}_label").write_text(f"{name}\n")
            (sensor / f"in{channel}_input").write_text(f"{millivolts}\n")
            (sensor / f"curr{channel}_input").write_text(f"{milliamperes}\n")
    return directory


def test_the_input_rail_is_the_whole_board(tmp_path: Path) -> None:
    directory = monitors(tmp_path, NANO)
    assert list(rails(directory)) == ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]
    assert board_power(directory) == pytest.approx(5.048 * 1.52)


def test_without_an_input_rail_the_parts_are_added(tmp_path: Path) -> None:
    assert board_power(monitors(tmp_path, AGX)) == pytest.approx(6.0 + 3.0 + 4.5)


def test_a_rail_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    directory = monitors(tmp_path, AGX)
    (directory / "1-0040" / "hwmon" / "hwmon0" / "curr2_input").unlink()
    assert "VDD_CPU_CV" not in rails(directory)
    assert board_power(directory) is None, "a sum without a part would be too small"


def test_a_machine_without_a_monitor_tells_nothing(tmp_path: Path) -> None:
    assert board_power(tmp_path / "missing") is None
