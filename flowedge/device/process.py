"""This process: the command of a module, freed memory, and the limit of descriptors."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from functools import cache
from typing import Any

WANTED = 1 << 16  # file descriptors, which connections count against
# `python -m` imports from the current directory first, where a file of any user may be called like a module
# of a library. The option against that, -P, is missing in Python 3.10.
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str) -> list[str]:
    """Return the command that runs a module, which imports nothing from the current directory."""
    return [sys.executable, "-c", _RUN, module]


def release_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can do that (glibc); some milliseconds."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def release_unused_memory() -> None:
    """Free what only objects that refer to each other hold, and give all freed memory back, a GPU's as well.

    It takes some 30 ms, in which no other thread runs.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    release_freed_memory()


@cache
def _malloc_trim() -> Any | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def raise_descriptor_limit() -> int:
    """Raise the limit as far as the system allows, up to WANTED; return the limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if most == resource.RLIM_INFINITY else min(WANTED, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        limit = wanted
    return WANTED if limit == resource.RLIM_INFINITY else limit
