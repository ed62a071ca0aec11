"""What this device computes on: its CPU or a CUDA GPU, and the dtypes that are fast there.

Nothing here imports torch. Whether a GPU works is tried by a process of its own, which a broken driver may
crash or hang (models/check/compute_probe.py).
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil

from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.device.board.clock_rates import fast_cores
from flowedge.device.kernel_library import cpu_flags, missing_reason
from flowedge.device.process import module_command

AUTO, CPU = "auto", "cpu"
FLOAT32: Final = "float32"
FLOAT16: Final = "float16"
BFLOAT16: Final = "bfloat16"
PREFERENCE = (BFLOAT16, FLOAT16, FLOAT32)
TRIAL_S = 60.0  # a board needs 10 to 20 s, most of it for the import of torch
PROBE_PROGRAM = "flowedge.models.check.compute_probe"
NOT_TRIED = "not tried"

NOT_INSTALLED = (
    "bitsandbytes is not installed, whose wheels do not work on every device; int8, int4 and w8a16 need "
    "nothing beside PyTorch"
)
NO_CUDA_REMEDY = (
    "on a Jetson install NVIDIA's build of PyTorch (device_agents/install.sh does), elsewhere a build for "
    "CUDA and the driver; the agent's user has to be in the groups video and render"
)
QUANT_REMEDY = (
    "PyPI's bitsandbytes for aarch64 is built for servers, and its kernels fail on JetPack: install it from "
    "NVIDIA's Jetson index, or build it for the GPU's compute capability (8.7 on Orin); int4 does without"
)

_KERNELS = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")  # of torch.cuda.get_arch_list
_SETTING = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
_GPU_FILES = (
    "dev/nvidiactl",
    "dev/nvhost-gpu",
    "dev/nvhost-ctrl-gpu",
    "dev/nvgpu",
    "proc/driver/nvidia/version",
)
_FAST_BFLOAT16 = frozenset({"amx_bf16", "avx512_bf16"})  # flags of x86 processors


def missing_kernels(kinds: Sequence[str], capability: tuple[int, int]) -> str:
    """Return why a build of PyTorch has no kernels for a GPU; "" if it has.

    Machine code (sm_80) runs on later GPUs of the same generation (8.7), and code that is translated there
    (compute_80) on all later GPUs.

    Args:
        kinds: as `torch.cuda.get_arch_list` names them.
        capability: the compute capability of the GPU, such as (8, 7).
    """
    for kind in map(_KERNELS.fullmatch, kinds):
        if kind is None:
            continue
        built = int(kind[2]), int(kind[3])
        later = built == capability if kind[4] else built <= capability
        if later and (kind[1] == "compute" or built[0] == capability[0]):
            return ""
    major, minor = capability
    return (
        f"this PyTorch has kernels for {' '.join(kinds) or 'no GPU'}, and this GPU is sm_{major}{minor}: it "
        "is a build for servers (SBSA) or for another board"
    )


def checked_device(setting: str) -> str:
    """Return the setting of a compute device.

    Raises:
        BadRequestError: when it is neither auto nor cpu nor cuda nor cuda:N.
    """
    if not _SETTING.fullmatch(setting):
        raise BadRequestError(f"device {setting!r} is not auto, cpu, cuda or cuda:N")
    return setting


@dataclass(frozen=True)
class DeviceProbe:
    """What ran on one compute device when it was tried.

    Attributes:
        device: torch's name of the device, such as cuda:0; processor: the name of the hardware.
        dtypes: the dtypes that it computes fast, the best first.
        problem: why nothing can be computed there; empty when products and an attention ran.
        quant_problems: by quantisation whose product failed, why.
        integrated: whether a GPU shares the memory of the host.
        memory_total, memory_free: bytes of a GPU's own memory; 0 where it has none.
    """

    device: str
    processor: str = ""
    dtypes: tuple[str, ...] = (FLOAT32,)
    problem: str = ""
    quant_problems: Mapping[str, str] = field(default_factory=dict)
    integrated: bool = False
    memory_total: int = 0
    memory_free: int = 0

    def to_json(self) -> str:
        """Return the object that the program of the trial prints, on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DeviceProbe:
        """Read the object that the program of the trial prints."""
        values = json.loads(text)
        return cls(**{**values, "dtypes": tuple(values["dtypes"])})

    def stopped(self, reason: str) -> DeviceProbe:
        """Return a trial in which `reason` is the problem of every quantisation that was not tried."""
        problems = self.quant_problems.items()
        return replace(self, quant_problems={q: reason if p == NOT_TRIED else p for q, p in problems})


def try_device(device: str, timeout_s: float = TRIAL_S) -> DeviceProbe:
    """Compute something on a device, in a process of its own; `problem` says why that failed.

    When the process crashes or hangs while it tries a quantisation, that quantisation and the quantisations
    after it have a problem.
    """
    command = [*module_command(PROBE_PROGRAM), device]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        printed, reason = error.stdout or b"", f"the trial did not end within {timeout_s:g} s"
    else:
        words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        printed, reason = done.stdout, f"the trial ended with {done.returncode}: {words}"
    # The last line is complete only where a line end follows. Libraries may print lines of their own.
    lines = printed.decode(errors="replace").split("\n")[:-1]
    trials = [line for line in lines if line.startswith("{")]
    return (
        DeviceProbe.from_json(trials[-1]).stopped(reason) if trials else DeviceProbe(device, problem=reason)
    )


@dataclass(frozen=True)
class ComputeChoice:
    """The compute device of one role.

    Attributes:
        device: torch's name of the device; processor: the name of the hardware.
        dtypes: the dtypes that it computes fast, the best first.
        reason: why it is not the GPU, and what to do about that; empty where nothing is wrong.
    """

    device: str
    processor: str
    dtypes: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class DeviceCompute:
    """What this device can compute on.

    Attributes:
        setting: what the configuration asks for.
        cpu: the choice that is always there.
        gpu: the GPU's trial; None where there is no GPU, or the setting leaves it out.
    """

    setting: str
    cpu: ComputeChoice
    gpu: DeviceProbe | None = None

    def choose(self, quant: str = "") -> ComputeChoice:
        """Return the compute device of a role whose layers have a quantisation; "" for none.

        With the setting auto, what the GPU cannot multiply with is computed on the CPU.

        Raises:
            BadRequestError: when the setting names a GPU that cannot multiply with this quantisation.
        """
        gpu = self.gpu
        if gpu is None:
            return self.cpu
        if gpu.problem:
            return replace(self.cpu, reason=f"{gpu.device} is not used: {gpu.problem}; {NO_CUDA_REMEDY}")
        problem = gpu.quant_problems.get(quant or "none")
        if problem is None:
            return ComputeChoice(gpu.device, gpu.processor, gpu.dtypes)
        reason = f"{quant} does not run on {gpu.device}: {problem}; {QUANT_REMEDY}"
        if self.setting != AUTO:
            raise BadRequestError(reason)
        return replace(self.cpu, reason=reason)

    @property
    def best(self) -> ComputeChoice:
        """The compute device of layers without quantisation."""
        return self.choose()

    def best_for(self, quant: str) -> ComputeChoice:
        """Return what `choose` returns; where it raises, the GPU with the reason against it."""
        try:
            return self.choose(quant)
        except BadRequestError as error:
            return replace(self.best, reason=str(error))


def find_compute(setting: str, name: str = "this device", root: Path = Path("/")) -> DeviceCompute:
    """Find out what this device can compute on; a GPU takes seconds, because it is tried.

    Args:
        setting: as `checked_device` returns it.
        name: of the device, for errors.
        root: the directory with /proc and /dev.

    Raises:
        DeviceError: when the setting names a GPU that does not work.
    """
    cpu = ComputeChoice(CPU, processor_name(root), cpu_dtypes(root))
    if setting == CPU or (setting == AUTO and not has_gpu(root)):
        return DeviceCompute(setting, cpu)
    trial = try_device("cuda" if setting == AUTO else setting)
    if trial.problem and setting != AUTO:
        raise DeviceError(name, f"{setting} cannot be used: {trial.problem}; {NO_CUDA_REMEDY}")
    return DeviceCompute(setting, cpu, trial)


def negotiate_dtype(devices: Mapping[str, Sequence[str]]) -> str:
    """Return the best dtype that all devices of a pipeline compute fast; float32 if they share none.

    devices: by device, the dtypes that are fast there.
    """
    return next((dtype for dtype in PREFERENCE if all(dtype in fast for fast in devices.values())), FLOAT32)


def has_gpu(root: Path = Path("/")) -> bool:
    """Return whether the system has files of an NVIDIA GPU."""
    return any((root / file).exists() for file in _GPU_FILES)


def cpu_dtypes(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the dtypes that this CPU computes fast, the best first.

    The kernels read weights of bfloat16 in half the time of float32 on every CPU that they run on.
    """
    is_fast = not missing_reason() or _FAST_BFLOAT16 & cpu_flags(root / "proc/cpuinfo")
    return (BFLOAT16, FLOAT32) if is_fast else (FLOAT32,)


def processor_name(root: Path = Path("/")) -> str:
    """Return the name of this CPU, or its architecture where it has no name."""
    return _cpuinfo(root).get("model name", "") or platform.processor() or platform.machine() or CPU


def physical_cores() -> int:
    """Return the number of physical cores of this machine."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def default_threads(root: Path = Path("/")) -> int:
    """Return the number of physical cores less one, which is left to the event loop; at least 1.

    Of a processor with slow cores beside fast ones it is the number of the fast cores: all threads of a layer
    wait for the slowest, and the slow cores are left to the rest.
    """
    cores, fast = physical_cores(), fast_cores(root)
    return max(1, cores - 1 if fast is None or fast >= cores else fast)


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return what the system says of the first processor; empty where it says nothing."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
