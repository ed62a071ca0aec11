"""What slows a device down is read from the files of kernels, and decided from several readings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.device.board.slowdowns import CLEAR_S, HOLD_S, Slowdowns, Throttling, read_slowdowns
from tests.support.board_files import cooler, cpu_policy, write_files

FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"


ALERT = cooler(4, "gpu-throttle-alert", 1)
IDLE = cpu_policy(0, 600, 1800, 1800, "performance")  # a group of processors beside others that work


def hwmon(number: int, name: str, **files: int) -> dict[str, object]:
    folder = f"sys/class/hwmon/hwmon{number}"
    return {f"{folder}/name": name} | {f"{folder}/{file}": value for file, value in files.items()}


@pytest.mark.parametrize(
    ("files", "causes"),
    [
        ({}, []),
        (cooler(0, "pwm-fan", 3) | cooler(1, "cpufreq-cpu0", 0), []),
        (cooler(0, "pwm-fan", 3) | cooler(1, "cpufreq-cpu0", 2), ["cpufreq-cpu0"]),
        (ALERT | cooler(5, "thermal-devfreq-0", 1), ["gpu-throttle-alert", "thermal-devfreq-0"]),
        ({FIRMWARE: "0x0"}, []),
        ({FIRMWARE: "0x50000"}, []),  # it has been, and is not now
        ({FIRMWARE: "50005"}, ["throttling", "undervoltage"]),
        ({FIRMWARE: "e0008"}, ["soft temperature limit"]),
        ({FIRMWARE: "garbage"}, []),
        (hwmon(2, "rpi_volt", in0_lcrit_alarm=1), ["undervoltage"]),
        (hwmon(2, "rpi_volt", in0_lcrit_alarm=0) | hwmon(3, "ina3221", in0_lcrit_alarm=1), []),
        (cpu_policy(0, 1200, 2400, 2400), []),  # the kernel has chosen it
        (cpu_policy(0, 1200, 2400, 2400, "performance"), ["cpu0-3 below its clock"]),
        (cpu_policy(0, 2390, 2400, 2400, "performance"), []),
        (
            cpu_policy(0, 600, 1800, 1800, "performance")
            | cpu_policy(4, 2400, 2400, 2400, "performance", "4 5"),
            [],  # a group that is idle
        ),
    ],
)
def test_what_slows_a_board_down(
    tmp_path: Path, files: Mapping[str, object], causes: list[str] | None
) -> None:
    found = read_slowdowns(write_files(tmp_path, files)).causes
    assert list(found) == (["gpu-throttle-alert", "thermal-devfreq-0"] if causes is None else causes)


def test_events_are_counted_by_what_slows_a_board_down(tmp_path: Path) -> None:
    files = hwmon(1, "soctherm_oc", oc1_event_cnt=2, oc3_event_cnt=40)
    cores = "sys/devices/system/cpu/cpu{}/thermal_throttle/package_throttle_count"
    write_files(tmp_path, files | {cores.format(core): 7 for core in range(4)})
    assert read_slowdowns(tmp_path).events == {"over-current": 42, "heat of the processor": 7}


def after(readings: Mapping[float, Slowdowns]) -> Throttling:
    state = Throttling()
    for now, reading in readings.items():
        state = state.after(reading, now)
    return state


HOT, COOL = Slowdowns(("cpufreq-cpu0",)), Slowdowns()


def test_a_moment_is_not_told_and_a_while_is() -> None:
    assert not after({0: HOT}).is_on and str(after({0: HOT})) == ""
    hot = after({0: HOT, HOLD_S: HOT})
    assert hot.is_on and str(hot) == "cpufreq-cpu0" and hot.seconds == HOLD_S
    assert hot.after(COOL, HOLD_S + CLEAR_S - 1).is_on, "it may be slowed down again at once"
    cool = hot.after(COOL, HOLD_S + CLEAR_S)
    assert not cool.is_on and cool.seconds == 0
    assert not cool.after(HOT, HOLD_S + CLEAR_S + 1).is_on, "it begins anew"


def test_events_count_from_the_first_reading_on() -> None:
    def counted(count: int) -> Slowdowns:
        return Slowdowns(events={"over-current": count})

    assert not after({0: counted(40), 10: counted(40)}).is_on, "they were before the agent's start"
    rising = after({0: counted(40), 2: counted(41), 4: counted(41), 6: counted(44)})
    assert rising.is_on and rising.causes == ("over-current",) and rising.seconds == 4


@given(st.lists(st.booleans(), max_size=60), st.sampled_from([1.0, 2.0, 7.0]))
def test_a_slowdown_lasts_from_the_first_of_its_readings_to_the_last(flags: list[bool], pause: float) -> None:
    """However a device flickers: readings belong together unless CLEAR_S lie between them."""
    state = Throttling()
    episode: list[float] = []
    for index, is_hot in enumerate(flags):
        now = index * pause
        state = state.after(HOT if is_hot else COOL, now)
        if episode and not is_hot and now - episode[-1] >= CLEAR_S:
            episode = []
        episode += [now] if is_hot else []
        assert state.seconds == (episode[-1] - episode[0] if episode else 0)
        assert state.is_on == (state.seconds >= HOLD_S)
