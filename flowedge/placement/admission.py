"""Whether an assignment fits this device, said before anything of it is loaded."""

from __future__ import annotations

from flowedge.system.memory_room import AvailableMemory, MemorySettings, read_available_memory
from flowedge.system.memory_sums import gib, require_memory

ADVICE = (
    "free memory there, give it fewer layers or a smaller quantisation, or lower memory.kv_tokens or "
    "memory.reserve_gib of its configuration"
)


def admit(
    what: str, device: str, *, weights: int, row_bytes: int, max_rows: int, settings: MemorySettings
) -> None:
    """CapacityError when a device cannot hold weights, the KV cache to be provided for, and its reserve.

    weights: bytes; row_bytes: of the KV cache, for one token; max_rows: the longest context of the model.
    """
    require(what, device, read_available_memory(settings), weights, row_bytes, max_rows, settings)


def require(
    what: str,
    device: str,
    room: AvailableMemory,
    weights: int,
    row_bytes: int,
    max_rows: int,
    settings: MemorySettings,
) -> None:
    """The same for a room that has been read."""
    rows = min(settings.kv_tokens, max_rows)
    parts = {
        "weights": weights,
        f"KV cache for {rows} tokens": rows * row_bytes,
        "reserve": settings.reserve_bytes,
    }
    said = f"{gib(room.available)} of {gib(room.total)} are available, by {room.bound}"
    require_memory(f"{what} does not fit on device {device}", parts, room.available, said, ADVICE)


def session_rows(row_bytes: int, settings: MemorySettings) -> int:
    """The cache rows that one session may have, at least 1: what is free now without the reserve."""
    free = read_available_memory(settings).available - settings.reserve_bytes
    return max(1, free // row_bytes)
