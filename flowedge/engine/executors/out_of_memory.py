"""Memory that runs out while a device computes or loads ends one request, or one load, and nothing else."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from flowedge.core.errors import CapacityError
from flowedge.device.memory import gib, read_memory_of
from flowedge.models.host.memory_errors import is_out_of_memory

T = TypeVar("T")

_log = logging.getLogger(__name__)


def within_memory(
    claim: str, device: torch.device | str, run: Callable[[], T], free: Callable[[], None]
) -> T:
    """Return the result of `run`, which allocates memory of a device.

    Args:
        claim: what does not fit, as a sentence without its end.
        free: frees what the failed run leaves allocated; called only after a failure.

    Raises:
        CapacityError: when memory runs out, with the sums. Memory that `run` held is free by then.
    """
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
    # Outside of the handler, because the error's traceback keeps the tensors of the failed run.
    free()
    _release(torch.device(device))
    room = read_memory_of(str(device))
    _log.warning("memory ran out: %s: %s", claim, reason)
    raise CapacityError(
        f"{claim}: the memory of {device} ran out; now {gib(room.available)} of {gib(room.total)} are "
        f"available, by {room.bound}; ask for a shorter context, give the device fewer layers or a smaller "
        "quantisation, or raise memory.reserve_gib of its configuration"
    )


def _release(device: torch.device) -> None:
    """Give memory that no tensor has any more back to the driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
