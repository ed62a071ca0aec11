"""The builds of the kernels that run on this machine, and their absence."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowedge.device import kernel_library as library
from flowedge.device.kernel_builds import Build, builds_of

FOLDER = Path(library.__file__).parents[1] / "kernels"
RUNNING = [
    build
    for build in builds_of(platform.machine())
    if build.flags <= library.cpu_flags() and (FOLDER / build.file_name).exists()
]


@contextmanager
def kernels_of(build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with a build instead of the most demanding."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "cpu_flags", lambda: build.flags)
        library.forget_library()
        yield
    library.forget_library()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compute all layers by torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.OFF, "off")
        library.forget_library()
        yield
    library.forget_library()
