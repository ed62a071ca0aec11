"""The kernels' library: which build runs on this CPU, and why there is none where there is none."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Collection
from pathlib import Path

from flowedge.device.kernel_builds import TILES, Build, builds_of

VERSION = 11  # of the structures and functions, which the library has to have
OFF = "FLOWEDGE_NATIVE"  # the environment variable; "off" computes all layers with torch

_FOLDER = Path(__file__).parents[1] / "kernels"
_CPU_INFO = Path("/proc/cpuinfo")
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of x86-64 Linux, see Documentation/arch/x86/xstate.rst
_REQUEST_TILES = (158, 0x1023, 18)

_log = logging.getLogger(__name__)


class LibraryError(Exception):
    """There is no library of kernels for this machine; the message says why."""


def library() -> ctypes.CDLL:
    """Load the most demanding build that this CPU runs.

    Raises:
        LibraryError: when the kernels are switched off, were not built, or do not run on this CPU.
    """
    found = _found()
    if isinstance(found, str):
        raise LibraryError(found)
    return found


def is_switched_off() -> bool:
    """Whether the user wants all layers to be computed by torch."""
    return os.environ.get(OFF, "").lower() == "off"


def missing_reason() -> str:
    """The reason why there is no library; empty when there is one."""
    found = _found()
    return found if isinstance(found, str) else ""


def forget_library() -> None:
    """Let the next call look for the library again."""
    _found.cache_clear()


def fitting_build(machine: str, flags: Collection[str], built: Collection[str]) -> Build:
    """The most demanding build that a CPU runs.

    Args:
        flags: the CPU's features; built: the file names of builds that exist.

    Raises:
        LibraryError: when no build fits.
    """
    known = builds_of(machine)
    if not known:
        raise LibraryError(f"there are no kernels for {machine} CPUs")
    fitting = [build for build in known if build.flags <= {*flags}]
    if not fitting:
        missing = ", ".join(sorted(known[-1].flags - {*flags}))
        raise LibraryError(f"this CPU has not what the kernels need: {missing}")
    for build in fitting:
        if build.file_name in built:
            return build
    raise LibraryError(
        "the kernels were not built when FlowEdge was installed; install g++ 11 or newer, then FlowEdge again"
    )


def cpu_flags(cpu_info: Path = _CPU_INFO) -> frozenset[str]:
    """The features of a CPU, as Linux names them in its file `cpu_info`; none where Linux does not tell."""
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def usable_flags() -> frozenset[str]:
    """The features of this CPU that the system lets this process use: Linux gives AMX's tiles on request."""
    flags = cpu_flags()
    return flags - TILES if flags & TILES and not _get_tiles() else flags


def _get_tiles() -> bool:
    """Ask for AMX's tiles, for all threads of this process; False where the kernel or a sandbox has none."""
    return bool(ctypes.CDLL(None).syscall(*map(ctypes.c_long, _REQUEST_TILES)) == 0)


def opened(path: Path) -> ctypes.CDLL:
    """Load a build.

    Raises:
        LibraryError: when it cannot be loaded, or was built from other sources.
    """
    try:
        loaded = ctypes.CDLL(str(path))
        found = int(loaded.flowedge_version())
    except (OSError, AttributeError) as error:
        raise LibraryError(f"the kernels cannot be loaded: {error}; install FlowEdge again") from error
    if found != VERSION:
        raise LibraryError(
            f"{path.name} was built from version {found} of the kernels, but FlowEdge needs version "
            f"{VERSION}; install FlowEdge again"
        )
    return loaded


@functools.cache
def _found() -> ctypes.CDLL | str:
    """The library, or the reason why there is none."""
    if is_switched_off():
        return f"the environment variable {OFF} is off"
    try:
        build = fitting_build(platform.machine(), usable_flags(), _built())
        found = opened(_FOLDER / build.file_name)
    except LibraryError as error:
        return str(error)
    _log.info("the kernels' build for CPUs with %s is used", build.name)
    return found


def _built() -> frozenset[str]:
    return frozenset(path.name for path in _FOLDER.glob("kernels_*.so"))
