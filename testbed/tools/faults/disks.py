"""What happens to the files of a board: a disk without a free byte, and a byte that has changed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flowedge.core.errors import DeviceError

DISK_MIB = 64  # of a board: the quantised weights of its block, and its state
_FILL = "everything-else"
_HEADER_BYTES = 4096  # of a file of weights; a change behind it is in a weight


def mount_disk(directory: Path) -> None:
    """Give a directory a disk of its own. Raises DeviceError when that is not possible."""
    directory.mkdir(parents=True, exist_ok=True)
    _run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(directory)])


def unmount_disk(directory: Path) -> None:
    _run(["umount", "--lazy", str(directory)])


def fill_disk(directory: Path) -> None:
    """Leave no byte of the disk of a directory free."""
    with (directory / _FILL).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:  # there is no space left
            return


def free_disk(directory: Path) -> None:
    (directory / _FILL).unlink()


def flip_bit(directory: Path, chance: random.Random) -> bool:
    """Flip one bit in a file of weights below a directory; return whether there was one."""
    files = sorted(each for each in directory.rglob("*.safetensors") if each.stat().st_size > _HEADER_BYTES)
    if not files:
        return False
    chosen = chance.choice(files)
    place = chance.randrange(_HEADER_BYTES, chosen.stat().st_size)
    with chosen.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return True


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=False)
    if done.returncode:
        raise DeviceError("the disk of a board", f"{' '.join(command)}: {done.stderr.strip()}")
