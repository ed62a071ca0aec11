"""Whether a part of a model fits this device, decided before anything of it is loaded."""

from __future__ import annotations

from flowedge.device.memory import (
    AvailableMemory,
    MemorySettings,
    gib,
    read_available_memory,
    require_memory,
)

ADVICE = (
    "free memory there, give it fewer layers or a smaller quantisation, or lower memory.kv_tokens or "
    "memory.reserve_gib of its configuration"
)


def admit(
    what: str,
    device: str,
    *,
    weights: int,
    row_bytes: int,
    max_rows: int,
    settings: MemorySettings,
    memory: AvailableMemory | None = None,
) -> None:
    """Check that this device holds weights, the KV cache that the settings ask for, and the reserve.

    Args:
        what: the part of a model, as the subject of a sentence.
        weights: bytes of the weights.
        row_bytes: bytes of the KV cache for one token.
        max_rows: the longest context of the model, in tokens.
        memory: what is available; read now if None.

    Raises:
        CapacityError: when they do not fit, with the sums.
    """
    memory = memory or read_available_memory(settings)
    rows = min(settings.kv_tokens, max_rows)
    parts = {
        "weights": weights,
        f"KV cache for {rows} tokens": rows * row_bytes,
        "reserve": settings.reserve_bytes,
    }
    supply = f"{gib(memory.available)} of {gib(memory.total)} are available, by {memory.bound}"
    require_memory(f"{what} does not fit on device {device}", parts, memory.available, supply, ADVICE)


def session_rows(row_bytes: int, settings: MemorySettings, memory: AvailableMemory | None = None) -> int:
    """Return the cache rows that fit in free memory beside the reserve, at least 1.

    memory: what is available; read now if None.
    """
    memory = memory or read_available_memory(settings)
    free = memory.available - settings.reserve_bytes
    return max(1, free // row_bytes)
