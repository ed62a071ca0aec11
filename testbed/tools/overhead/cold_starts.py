"""Time the cold starts of commands: `python -m testbed.tools.overhead.cold_starts [--runs N]`.

Each command is run several times as a process of its own, through the script that pip installs. A pipeline of
the bundled model is ready beside them, which `generate` and `devices --peers` ask.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from flowedge import LocalCluster
from flowedge.cluster.process import VARIABLE, process_secret

SEARCH_S = 1.0  # of `devices`, which always takes all of the time that it is given


@dataclass(frozen=True)
class ColdStart:
    """The seconds of one run of a command: of the whole process, and of the processor."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.overhead.cold_starts", description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {runs} runs each"
    )
    print("seconds: least and median of the whole process, median of the processor's")
    with LocalCluster(stages=1) as cluster:
        address = cluster.address
        report(["--help"], runs)
        report(["devices", "--help"], runs)
        report(["generate", "--help"], runs)
        report(["generate", "--max-new-tokens", "none"], runs, code=2)
        report(["devices", "--peers", address], runs)
        report(["devices", "--timeout", f"{SEARCH_S:g}"], runs, waits_s=SEARCH_S)
        question = ["--quiet", "--prompt", "Hi", "--max-new-tokens", "1"]
        report(["generate", "--peers", address, *question], runs)


def report(arguments: Sequence[str], runs: int, *, code: int = 0, waits_s: float = 0.0) -> None:
    """Print the seconds of a command; of those, `waits_s` are what its options have it wait."""
    times = [cold_start(arguments, code) for _ in range(runs)]
    walls = [each.wall - waits_s for each in times]
    beside = f"   beside {waits_s:g} s of search" if waits_s else ""
    print(
        f"  {min(walls):5.3f}  {median(walls):5.3f}  {median(each.processor for each in times):5.3f}"
        f"   flowedge {' '.join(arguments)}{beside}",
        flush=True,
    )


def cold_start(arguments: Sequence[str], code: int = 0) -> ColdStart:
    """Run a command, which has to exit with `code`."""
    environment: Mapping[str, str] = {**os.environ, VARIABLE: process_secret()}
    command = [str(Path(sys.executable).with_name("flowedge")), *arguments]
    nothing = subprocess.DEVNULL
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}, not with {code}")
    return ColdStart(wall, used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()
