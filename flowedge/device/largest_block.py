"""The largest block of memory that can be had at once, which is tried by a process of its own.

As a program, it takes torch's name of a device and the greatest number of bytes to ask for, and prints the
largest block in bytes. Memory of a GPU is really taken, for a moment. Of the CPU's memory only addresses are:
its pages need not lie together, so that a block has the limits of the process and of overcommitment.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flowedge.device.process import module_command

TRIAL_S = 60.0  # a GPU's first use takes a board 10 to 20 s
STEPS = 6  # halvings, after which the result is as near as a 64th of what was asked for
KEEP_BYTES = 512 << 20  # of a GPU's free memory, which are not asked for: others may want them just then


def largest_block(most: int, can_have: Callable[[int], bool]) -> int:
    """Return the size of the largest block of at most `most` bytes, to a 64th of that; 0 where none was had.

    can_have: whether a block of so many bytes can be had.
    """
    if most <= 0 or can_have(most):
        return max(most, 0)
    had, refused = 0, most
    for _ in range(STEPS):
        middle = (had + refused) // 2
        had, refused = (middle, refused) if can_have(middle) else (had, middle)
    return had


def try_largest_block(device: str, most: int, timeout_s: float = TRIAL_S) -> tuple[int, str]:
    """Return the largest block of a device in bytes, and why that is not known; "" if it is.

    Args:
        device: torch's name of it; most: the greatest number of bytes to ask for.
    """
    # Without torch's own pool, each block is asked of the driver, and given back at once.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*module_command("flowedge.device.largest_block"), device, str(most)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return 0, f"the trial did not end within {timeout_s:g} s"
    if done.returncode != 0 or not done.stdout.strip().isdecimal():
        return 0, f"the trial ended with {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}"
    return int(done.stdout), ""


def _can_map(size: int) -> bool:
    with suppress(OSError):
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        return True
    return False


def _can_allocate(device: str, size: int) -> bool:
    import torch  # noqa: PLC0415 (the CPU's trial does without)

    # Beside torch's error of memory, a Jetson has an internal one, of a library that it lacks.
    with suppress(RuntimeError):
        torch.empty(size, dtype=torch.uint8, device=device)
        return True
    return False


if __name__ == "__main__":
    named, bytes_wanted = sys.argv[1], int(sys.argv[2])
    on_cpu = named == "cpu"
    with suppress(OSError):  # where memory runs short, the system is to end this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    print(largest_block(bytes_wanted, _can_map if on_cpu else lambda size: _can_allocate(named, size)))
