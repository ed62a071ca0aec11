"""The errors that say that memory has run out."""

from __future__ import annotations

import torch

# Parts of the messages of errors that have no class of their own. On a Jetson, torch fails an assertion about
# NVML, which is not there, when it wants to report that memory is out.
_SAID = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "NVML_SUCCESS == r",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch or numpy says that an allocation failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _SAID)
