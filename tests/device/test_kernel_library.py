"""The choice of a build for a CPU, and the reasons why there is none."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from flowedge.device import kernel_library as library
from flowedge.device.kernel_builds import BUILDS, builds_of
from flowedge.device.kernel_library import LibraryError, fitting_build, missing_reason, opened
from tests.support.kernels import FOLDER, RUNNING, without_kernels

ALL = [build.file_name for build in BUILDS]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_a_cpu_gets_the_most_demanding_build_that_it_runs(build: library.Build) -> None:
    assert fitting_build(build.machine, build.flags | {"rdrand"}, ALL) is build


def test_a_build_that_was_not_made_is_passed_over() -> None:
    first, second, *_ = builds_of("x86_64")
    assert fitting_build("x86_64", first.flags, [second.file_name]) is second


@pytest.mark.parametrize(
    ("machine", "flags", "built", "reason"),
    [
        ("riscv64", frozenset(), ALL, "no kernels for riscv64 CPUs"),
        ("x86_64", frozenset({"fma", "f16c", "bmi2"}), ALL, "need: avx2"),
        ("aarch64", frozenset({"asimd"}), [], r"install g\+\+"),
    ],
)
def test_the_reason_for_no_build_is_told(
    machine: str, flags: frozenset[str], built: list[str], reason: str
) -> None:
    with pytest.raises(LibraryError, match=reason):
        fitting_build(machine, flags, built)


def test_the_kernels_can_be_switched_off() -> None:
    with without_kernels():
        assert "FLOWEDGE_NATIVE" in missing_reason()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "kernels_avx2.so"
    damaged.write_bytes(b"\x7fELF and no more")
    with pytest.raises(LibraryError, match=r"cannot be loaded.*install FlowEdge again"):
        opened(damaged)


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RUNNING, "no kernels were built for this machine"
    monkeypatch.setattr(library, "VERSION", 10**6)
    with pytest.raises(LibraryError, match="install FlowEdge again"):
        opened(FOLDER / RUNNING[0].file_name)


@pytest.mark.parametrize("build", builds_of(platform.machine()), ids=lambda build: build.name)
def test_this_machine_runs_the_builds_for_its_cpu(build: library.Build) -> None:
    """What tests of all builds leave out is seen here, as skipped."""
    if missing := build.flags - library.usable_flags():
        pytest.skip(f"this CPU, or its system, has not {', '.join(sorted(missing))}")
    assert build in RUNNING


def test_tiles_that_the_system_refuses_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    best = builds_of("x86_64")[0]
    monkeypatch.setattr(library, "cpu_flags", lambda: best.flags)
    monkeypatch.setattr(library, "_get_tiles", lambda: False)
    assert fitting_build("x86_64", library.usable_flags(), ALL).name == "avx512bf16"


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="there are no kernels for this CPU"
)
def test_this_machine_has_kernels() -> None:
    assert missing_reason() == ""
