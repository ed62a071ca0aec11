"""Whether something fits in memory, with the sums."""

from __future__ import annotations

from collections.abc import Mapping

from flowedge.core.errors import CapacityError

GIB = 2**30


def require_memory(claim: str, parts: Mapping[str, float], available: float, room: str, advice: str) -> None:
    """CapacityError, with the sums, when parts of so many bytes each are more than what is available.

    claim: what does not fit, and where, as a sentence; room: what there is, as one; advice: what to do.
    """
    needed = sum(parts.values())
    if needed > available:
        sums = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        total = f"{sums} = {gib(needed)}" if len(parts) > 1 else sums
        raise CapacityError(f"{claim}: {total}, and {room}; {advice}")


def gib(size: float) -> str:
    """Bytes in GiB; small models take less than a hundredth of one."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / GIB:.4f} GiB"
