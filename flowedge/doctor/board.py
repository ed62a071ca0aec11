"""What a board says of itself: release, power mode, clocks, memory of zram, and what slows it down."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.device.board.clock_rates import SHORTFALL, ClockRate, clock_rates
from flowedge.device.board.slowdowns import read_slowdowns
from flowedge.device.board.sysfs import text_in
from flowedge.device.memory import read_available_memory
from flowedge.doctor.finding import INFO, WARNING, Finding

_RELEASE = re.compile(r"# R(\d+) \(release\), REVISION: ([\d.]+)")  # of Jetson Linux
_MODE = re.compile(r"NV Power Mode: *(\S+)")
_HELD_LOW = "powersave"  # the governor that takes the lowest rate
_ANSWER_S = 5.0
ZRAM_SHARE = 0.05  # of the memory, from which zram is worth a word
OLDEST_RELEASE = 36

JETSON = INFO(
    "jetson",
    "this device is a Jetson: its release, its power mode, and its clocks against the highest of that mode",
    "For the shortest answers take the highest power mode and hold the clocks: sudo nvpmodel -p --verbose "
    "names the modes, whose numbers differ by image; then sudo nvpmodel -m NUMBER and sudo jetson_clocks.",
)
JETSON_OLD = WARNING(
    "jetson-release",
    "the Jetson Linux of this device is older than FlowEdge's GPU libraries need",
    "Flash JetPack 6 (R36) or later.",
)
ZRAM = WARNING(
    "zram",
    "zram keeps swapped pages in the memory of this board, which weights and a Jetson's GPU need",
    "Turn it off: on a Jetson sudo systemctl disable nvzramconfig, elsewhere disable the unit that systemctl "
    "list-units '*zram*' names; then reboot. Put swap on an SSD if it is needed.",
)
TOO_HOT = WARNING(
    "too-hot",
    "the device is slowed down, by heat or for want of power",
    "Cool it better, give it the power supply that its maker names, or take a lower power mode: a device "
    "whose clocks change makes all others wait.",
)
CLOCKS_LOW = WARNING(
    "clocks-low",
    "a clock of this device is held below what its hardware can",
    "On a Jetson take a higher power mode, then sudo jetson_clocks. Elsewhere write schedutil to "
    "scaling_governor, or cpuinfo_max_freq's number to scaling_max_freq, in each "
    "/sys/devices/system/cpu/cpufreq/policy*.",
)
KINDS = (JETSON, JETSON_OLD, ZRAM, TOO_HOT, CLOCKS_LOW)


@dataclass(frozen=True)
class BoardFacts:
    """What a board says of itself.

    Attributes:
        release: of Jetson Linux, such as (36, "4.3"); None on other devices.
        power_mode: its name; "" where it is not known.
        zram: bytes of swap in zram; memory: of the device, in bytes.
        slowed: what slows the device down now, such as "cpufreq-cpu0".
        is_board: whether a device tree names the board, as on a Jetson, a Raspberry Pi or an RK3588.
        clocks: of processors, the GPU and memory, as far as they can be read.
    """

    memory: int
    release: tuple[int, str] | None = None
    power_mode: str = ""
    zram: int = 0
    slowed: tuple[str, ...] = ()
    is_board: bool = False
    clocks: tuple[ClockRate, ...] = ()


def judge_board(board: BoardFacts, device: str) -> list[Finding]:
    findings = []
    if board.release is not None:
        major, revision = board.release
        mode = f", power mode {board.power_mode}" if board.power_mode else ""
        clocks = "".join(f", {clock}" for clock in board.clocks)
        findings.append(Finding(JETSON, device, f"Jetson Linux R{major}.{revision}{mode}{clocks}"))
        if major < OLDEST_RELEASE:
            findings.append(Finding(JETSON_OLD, device, f"Jetson Linux R{major}.{revision}"))
    if board.is_board and board.zram > ZRAM_SHARE * board.memory:
        findings.append(Finding(ZRAM, device, f"zram may take {board.zram / 2**30:.1f} GiB"))
    if board.slowed:
        return [*findings, *judge_slowed([(device, ", ".join(board.slowed))])]
    low = [clock for clock in board.clocks if _is_low(clock, by_mode=bool(board.power_mode))]
    if low:
        detail = ", ".join(f"{clock}, governor {clock.governor or 'unknown'}" for clock in low)
        findings.append(Finding(CLOCKS_LOW, device, detail))
    return findings


def judge_slowed(devices: Sequence[tuple[str, str]]) -> list[Finding]:
    """Judge devices, each given with what slows it down; "" where nothing does."""
    return [Finding(TOO_HOT, name, f"slowed down by {causes}") for name, causes in devices if causes]


def _is_low(clock: ClockRate, *, by_mode: bool) -> bool:
    """Return whether a clock is held low.

    by_mode: whether the highest rate is that of a power mode, which somebody has chosen.
    """
    bounded = clock.highest < SHORTFALL * clock.hardware and not by_mode
    return bounded or (clock.governor == _HELD_LOW and clock.now < SHORTFALL * clock.highest)


def board_facts(root: Path = Path("/")) -> BoardFacts:
    """Read what the files below `root` and nvpmodel say of this device."""
    release = _RELEASE.search(text_in(root / "etc" / "nv_tegra_release"))
    return BoardFacts(
        read_available_memory().total,
        None if release is None else (int(release[1]), release[2]),
        "" if release is None else _power_mode(),
        _zram_bytes(text_in(root / "proc" / "swaps")),
        read_slowdowns(root).causes,
        release is not None or bool(text_in(root / "proc" / "device-tree" / "model")),
        tuple(clock_rates(root)),
    )


def _power_mode() -> str:
    command = shutil.which("nvpmodel")
    if command is None:
        return ""
    try:
        done = subprocess.run([command, "-q"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    mode = _MODE.search(done.stdout)
    return "" if mode is None else mode[1]


def _zram_bytes(swaps: str) -> int:
    """The bytes of swap in zram, of the content of /proc/swaps."""
    fields = (line.split() for line in swaps.splitlines()[1:])
    return sum(int(each[2]) * 1024 for each in fields if len(each) > 2 and "/zram" in each[0])
