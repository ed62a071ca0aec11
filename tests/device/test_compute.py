"""What a device computes on, and the dtype that a pipeline of devices computes in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.device import compute
from flowedge.device.compute import (
    NOT_TRIED,
    ComputeChoice,
    DeviceCompute,
    DeviceProbe,
    checked_device,
    cpu_dtypes,
    default_threads,
    find_compute,
    missing_kernels,
    negotiate_dtype,
    processor_name,
    try_device,
)
from flowedge.device.kernel_library import missing_reason
from tests.support.kernels import without_kernels

GPU = DeviceProbe("cuda:0", "Orin", ("bfloat16", "float16", "float32"))
PI = ComputeChoice("cpu", "Cortex-A76", ("float32",))


def write(root: Path, file: str, content: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(content)


@pytest.mark.parametrize(
    ("kinds", "capability", "missing"),
    [
        ("sm_87", (8, 7), False),
        ("sm_50 sm_80 sm_90", (8, 7), False),  # machine code of 8.0 runs on 8.7
        ("sm_110 sm_121", (8, 7), True),  # of the SBSA index
        ("sm_90 compute_90", (8, 7), True),  # of servers
        ("sm_80 compute_80", (11, 0), False),  # translated there
        ("sm_90a", (9, 0), False),
        ("sm_100f sm_90a", (9, 1), True),
        ("", (8, 7), True),
    ],
)
def test_a_build_for_another_gpu_is_recognised(
    kinds: str, capability: tuple[int, int], missing: bool
) -> None:
    reason = missing_kernels(kinds.split(), capability)
    assert bool(reason) == missing
    assert not missing or "a build for servers (SBSA)" in reason


@pytest.mark.parametrize(
    ("flags", "dtypes"),
    [
        ("fpu sse avx512_bf16", ("bfloat16", "float32")),
        ("fpu amx_tile amx_bf16", ("bfloat16", "float32")),
        ("fpu sse avx2 avx512f avx512_vnni", ("float32",)),
    ],
)
def test_without_kernels_dtypes_follow_from_the_processor(
    tmp_path: Path, flags: str, dtypes: tuple[str, ...]
) -> None:
    write(tmp_path, "proc/cpuinfo", f"processor : 0\nmodel name : Chip 1\nflags : {flags}\n\nprocessor : 1\n")
    with without_kernels():
        assert cpu_dtypes(tmp_path) == dtypes
        assert find_compute("auto", root=tmp_path).best == ComputeChoice("cpu", "Chip 1", dtypes)


def test_with_kernels_every_processor_computes_bfloat16_fast(tmp_path: Path) -> None:
    assert not missing_reason()
    assert cpu_dtypes(tmp_path) == ("bfloat16", "float32")


def test_a_processor_that_says_nothing_computes_in_float32(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\nFeatures : fp asimd asimddp\n")
    with without_kernels():
        assert cpu_dtypes(tmp_path) == cpu_dtypes(tmp_path / "nothing") == ("float32",)
    assert processor_name(tmp_path / "nothing")


def test_the_setting_is_checked() -> None:
    assert [checked_device(name) for name in ("auto", "cpu", "cuda", "cuda:1")]
    for wrong in ("gpu", "cuda:", "CUDA", "cuda:1 ", "mps", ""):
        with pytest.raises(BadRequestError, match="is not auto, cpu, cuda or cuda:N"):
            checked_device(wrong)


@pytest.mark.proof
@pytest.mark.slow
def test_a_gpu_that_torch_cannot_use_leaves_the_cpu_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial, which imports torch, is a real one of this installation without CUDA."""
    write(tmp_path, "dev/nvidiactl", "")
    trial = try_device("cuda:0")
    monkeypatch.setattr(compute, "try_device", lambda device: replace(trial, device=device))
    assert find_compute("cpu", root=tmp_path).gpu is None
    found = find_compute("auto", root=tmp_path)
    assert found.best.device == "cpu"
    assert "cuda is not used: torch.cuda.is_available() is False; on a Jetson install" in found.best.reason
    with pytest.raises(DeviceError, match=r"device attic: cuda:0 cannot be used: .* is False; on a Jetson"):
        find_compute("cuda:0", "attic", tmp_path)


def test_a_trial_that_breaks_or_hangs_is_a_problem() -> None:
    assert "did not end within 0.01 s" in try_device("cpu", timeout_s=0.01).problem
    assert "the trial ended with 1: RuntimeError" in try_device("no such device").problem


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        # Like bitsandbytes, which ends the process when a kernel cannot be launched.
        (
            "sys.stderr.write('Error named symbol not found\\n'); os._exit(1)",
            "ended with 1: Error named symbol",
        ),
        ("time.sleep(60)", "did not end within 3 s"),
    ],
)
def test_a_trial_that_stops_at_a_quantisation_leaves_the_gpu_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, reason: str
) -> None:
    tried = replace(GPU, quant_problems={"int4": "too old", "int8": NOT_TRIED, "nf4": NOT_TRIED})
    lines = [
        replace(tried, quant_problems={"int4": NOT_TRIED}).to_json(),
        tried.to_json(),
        "a library's line",
    ]
    printed = "".join(f"{line}\n" for line in lines) + '{"device": "cut off'
    program = f"import os, sys, time\nsys.stdout.write({printed!r}); sys.stdout.flush()\n{end}\n"
    write(tmp_path, "stopping_trial.py", program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compute, "PROBE_PROGRAM", "stopping_trial")
    found = try_device("cuda", timeout_s=3)
    assert (found.device, found.problem, found.dtypes) == ("cuda:0", "", GPU.dtypes)
    assert found.quant_problems.keys() == {"int4", "int8", "nf4"}
    assert found.quant_problems["int4"] == "too old"
    assert all(reason in found.quant_problems[quant] for quant in ("int8", "nf4"))


def test_a_trial_crosses_a_pipe() -> None:
    trial = replace(GPU, quant_problems={"nf4": "no kernel image"}, memory_total=8 << 30)
    assert DeviceProbe.from_json(trial.to_json()) == trial


def test_a_quantisation_that_fails_on_the_gpu_is_computed_on_the_cpu() -> None:
    trial = replace(GPU, quant_problems={"nf4": "no kernel image is available"})
    auto = DeviceCompute("auto", PI, trial)
    assert [auto.choose(quant).device for quant in ("", "none", "int4", "nf4")] == ["cuda:0"] * 3 + ["cpu"]
    assert "nf4 does not run on cuda:0: no kernel image is available; PyPI's" in auto.choose("nf4").reason
    assert auto.best.reason == ""


def test_a_gpu_that_was_asked_for_by_name_is_not_replaced() -> None:
    named = DeviceCompute("cuda", PI, replace(GPU, quant_problems={"nf4": "no kernel image"}))
    with pytest.raises(BadRequestError, match="nf4 does not run on cuda:0: no kernel image"):
        named.choose("nf4")
    described = named.best_for("nf4")
    assert (described.device, "no kernel image" in described.reason) == ("cuda:0", True)


@pytest.mark.parametrize(
    ("devices", "dtype"),
    [
        ([GPU.dtypes, GPU.dtypes], "bfloat16"),
        ([GPU.dtypes, ("float16", "float32")], "float16"),
        ([("float16", "float32"), ("bfloat16", "float32")], "float32"),
        ([GPU.dtypes, ("bfloat16", "float32")], "bfloat16"),
        ([GPU.dtypes, PI.dtypes], "float32"),
        ([("float16",), ("bfloat16",)], "float32"),
    ],
)
def test_a_pipeline_computes_in_the_best_dtype_that_all_compute_fast(
    devices: list[tuple[str, ...]], dtype: str
) -> None:
    assert negotiate_dtype({str(number): fast for number, fast in enumerate(devices)}) == dtype


def test_threads_leave_a_core_to_the_event_loop() -> None:
    assert default_threads() >= 1
