"""What a board says of itself: its release, its power mode, memory of zram, and whether it is too hot."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from flowedge.device.memory import read_available_memory
from flowedge.doctor.finding import INFO, WARNING, Finding

_RELEASE = re.compile(r"# R(\d+) \(release\), REVISION: ([\d.]+)")  # of Jetson Linux
_MODE = re.compile(r"NV Power Mode: *(\S+)")
_COOLERS = ("cpufreq", "devfreq", "thermal-cpufreq", "thermal-devfreq")  # what slows down, unlike a fan
_ANSWER_S = 5.0
ZRAM_SHARE = 0.05  # of the memory, from which zram is worth a word
OLDEST_RELEASE = 36

JETSON = INFO(
    "jetson",
    "this device is a Jetson: its release and its power mode",
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
    "zram keeps swapped pages in the memory that the GPU shares",
    "Turn it off (sudo systemctl disable nvzramconfig, then reboot), and put swap on an SSD if it is needed.",
)
TOO_HOT = WARNING(
    "too-hot",
    "the device is slowed down because of its temperature",
    "Cool it better, or take a lower power mode: a device whose clocks change makes all others wait.",
)
KINDS = (JETSON, JETSON_OLD, ZRAM, TOO_HOT)


@dataclass(frozen=True)
class BoardFacts:
    """What a board says of itself.

    Attributes:
        release: of Jetson Linux, such as (36, "4.3"); None on other devices.
        power_mode: its name; "" where it is not known.
        zram: bytes of swap in zram; memory: of the device, in bytes.
        slowed: what is slowed down by heat now, such as "cpufreq-cpu0".
    """

    memory: int
    release: tuple[int, str] | None = None
    power_mode: str = ""
    zram: int = 0
    slowed: tuple[str, ...] = ()


def judge_board(board: BoardFacts, device: str) -> list[Finding]:
    findings = []
    if board.release is not None:
        major, revision = board.release
        mode = f", power mode {board.power_mode}" if board.power_mode else ""
        findings.append(Finding(JETSON, device, f"Jetson Linux R{major}.{revision}{mode}"))
        if major < OLDEST_RELEASE:
            findings.append(Finding(JETSON_OLD, device, f"Jetson Linux R{major}.{revision}"))
        if board.zram > ZRAM_SHARE * board.memory:
            findings.append(Finding(ZRAM, device, f"zram may take {board.zram / 2**30:.1f} GiB"))
    if board.slowed:
        findings.append(Finding(TOO_HOT, device, f"slowed down: {', '.join(board.slowed)}"))
    return findings


def board_facts(root: Path = Path("/")) -> BoardFacts:
    """Read what the files below `root` and nvpmodel say of this device."""
    release = _RELEASE.search(_text(root / "etc" / "nv_tegra_release"))
    return BoardFacts(
        read_available_memory().total,
        None if release is None else (int(release[1]), release[2]),
        "" if release is None else _power_mode(),
        _zram_bytes(_text(root / "proc" / "swaps")),
        tuple(sorted(_slowed(root / "sys" / "class" / "thermal"))),
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


def _slowed(thermal: Path) -> set[str]:
    """The kinds of the kernel's cooling devices that slow processors down now."""
    found = set()
    for cooler in thermal.glob("cooling_device*"):
        kind = _text(cooler / "type").strip()
        if kind.startswith(_COOLERS) and _text(cooler / "cur_state").strip() not in ("", "0"):
            found.add(kind)
    return found


def _text(path: Path) -> str:
    """The content of a file; "" where there is none that can be read."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
