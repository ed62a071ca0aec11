"""Files as the kernel of a board has them, below a directory of a test's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

POLICY = "sys/devices/system/cpu/cpufreq/policy"
COOLER = "sys/class/thermal/cooling_device"


def write_files(root: Path, files: Mapping[str, object]) -> Path:
    """Write the files, named from the root on, with a line end as the kernel writes it; return the root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="ascii")
    return root


def cpu_policy(
    number: int, now: int, highest: int, hardware: int, governor: str = "schedutil", cpus: str = "0 1 2 3"
) -> dict[str, object]:
    """The clock of a group of processors, in MHz."""
    folder = f"{POLICY}{number}"
    return {
        f"{folder}/scaling_cur_freq": now * 1000,
        f"{folder}/scaling_min_freq": 600_000,
        f"{folder}/scaling_max_freq": highest * 1000,
        f"{folder}/cpuinfo_max_freq": hardware * 1000,
        f"{folder}/scaling_governor": governor,
        f"{folder}/scaling_driver": "cpufreq-dt",
        f"{folder}/related_cpus": cpus,
    }


def cooler(number: int, kind: str, state: int) -> dict[str, object]:
    return {f"{COOLER}{number}/type": kind, f"{COOLER}{number}/cur_state": state}


THERMAL = Path("/sys/class/thermal")


def why_no_thermal_folder() -> str | None:
    """Return why no process can be given a thermal folder of its own here; None if it can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a mount of a process's own takes root and unshare (package util-linux)"
    return None if THERMAL.is_dir() else f"{THERMAL} is missing"


def with_thermal_folder(folder: Path, command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` with `folder` in the place of the kernel's thermal devices."""
    mount = f'mount --bind "{folder}" {THERMAL} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
