"""The clocks of a device, read from the files of kernels."""

from __future__ import annotations

from pathlib import Path

from flowedge.device.board.clock_rates import ClockRate, clock_rates, fast_cores
from flowedge.device.compute import default_threads, physical_cores
from tests.support.board_files import POLICY, cpu_policy, write_files

EMC = "sys/kernel/debug/bpmp/debug/clk/emc"


def devfreq(name: str, now: int, lowest: int, highest: int, rates: str = "") -> dict[str, object]:
    folder = f"sys/class/devfreq/{name}"
    found: dict[str, object] = {
        f"{folder}/cur_freq": now,
        f"{folder}/min_freq": lowest,
        f"{folder}/max_freq": highest,
        f"{folder}/governor": "nvhost_podgov",
    }
    return found | ({f"{folder}/available_frequencies": rates} if rates else {})


def test_the_clocks_of_a_jetson(tmp_path: Path) -> None:
    files = cpu_policy(0, 729, 1510, 1984) | cpu_policy(4, 1510, 1510, 1984, cpus="4 5")
    files |= devfreq("17000000.gpu", 306_000_000, 306_000_000, 624_750_000, "306000000 624750000 1020000000")
    files |= devfreq("15480000.nvdec", 1, 1, 2) | {
        f"{EMC}/rate": 2_133_000_000,
        f"{EMC}/max_rate": 3_199_000_000,
    }
    found = clock_rates(write_files(tmp_path, files))
    assert list(map(str, found)) == [
        "cpu0-3 729 of 1510 MHz (hardware 1984)",
        "cpu4-5 1510 of 1510 MHz (hardware 1984)",
        "17000000.gpu 306 of 625 MHz (hardware 1020)",
        "memory 2133 of 3199 MHz",
    ]
    assert not any(clock.is_held for clock in found)


def test_a_held_clock(tmp_path: Path) -> None:
    files = cpu_policy(0, 1400, 1500, 1500) | {f"{POLICY}0/scaling_min_freq": 1_500_000}  # jetson_clocks
    (held,) = clock_rates(write_files(tmp_path, files))
    assert held.is_held and not held.is_short
    assert ClockRate("cpu0", 1_000_000, 0, 1_500_000, governor="performance").is_short


def test_a_processor_that_chooses_itself_is_not_held(tmp_path: Path) -> None:
    files = cpu_policy(0, 800, 4000, 4000, "performance") | {f"{POLICY}0/scaling_driver": "intel_pstate"}
    (clock,) = clock_rates(write_files(tmp_path, files))
    assert (clock.governor, clock.is_held, clock.is_short) == ("", False, False)


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert clock_rates(tmp_path) == []
    files = cpu_policy(0, 800, 4000, 4000) | {f"{POLICY}0/scaling_cur_freq": "<unsupported>"}
    assert clock_rates(write_files(tmp_path, files)) == []


def test_slow_cores_compute_no_layers(tmp_path: Path) -> None:
    assert fast_cores(tmp_path) is None
    assert default_threads(tmp_path) == max(1, physical_cores() - 1)
    cpus = "sys/devices/system/cpu/cpu{}/cpu_capacity"
    rk3588 = {cpus.format(core): 1024 if core >= 4 else 530 for core in range(8)}
    assert fast_cores(write_files(tmp_path, rk3588)) == 4
    assert fast_cores(write_files(tmp_path / "even", {cpus.format(core): 1024 for core in range(6)})) == 6
    alone = write_files(tmp_path / "one", {cpus.format(0): 1024, cpus.format(1): 300})
    assert default_threads(alone) == 1
