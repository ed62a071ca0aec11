"""Compares the kernels for ARM64 with those of this machine: python -m testbed.tools.arm_kernels.

Needs a cross compiler and an emulator: on Debian, the packages g++-aarch64-linux-gnu and qemu-user-static.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from flowedge.device import kernel_library as library
from flowedge.device.kernel_builds import OPTIONS, TILES, Build, builds_of

_SOURCES = Path(library.__file__).parents[1] / "kernels" / "src"
_TIMEOUT_S = 300
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
# Relative differences of float results: other orders of summation, and roundings of layers to 16 bits.
_ALLOWED = {"float32": 1e-5, "bfloat16": 1e-3, "layer-float32": 1e-4, "layer-int8": 2e-2, "layer-int4": 2e-2}
_ALLOWED_IN_16_BITS = 3e-2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default=COMPILER)
    parser.add_argument("--emulator", default=EMULATOR)
    options = parser.parse_args()
    missing = [tool for tool in (options.compiler, options.emulator, "g++") if shutil.which(tool) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    found = differences(options.compiler, options.emulator)
    print("\n".join(found) or "no differences beyond rounding")
    return int(bool(found))


def differences(compiler: str, emulator: str) -> list[str]:
    """Return what the kernels for ARM64 compute otherwise than those of this machine, beyond rounding."""
    with tempfile.TemporaryDirectory() as folder:
        own = library.fitting_build(
            "x86_64", library.cpu_flags() - TILES, [each.file_name for each in builds_of("x86_64")]
        )
        right = _results(_compiled(own, "g++", Path(folder)), [])
        return [
            text
            for build in builds_of("aarch64")
            for text in _compared(
                build, right, _results(_compiled(build, compiler, Path(folder)), [emulator])
            )
        ]


def _compiled(build: Build, compiler: str, folder: Path) -> Path:
    program = folder / build.name
    flags = [option for option in OPTIONS if option not in ("-shared", "-fvisibility=hidden")]
    source = Path(__file__).with_name("harness.cpp")
    command = [compiler, *flags, "-static", *build.options, f"-I{_SOURCES}", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    return program


def _results(program: Path, emulator: list[str]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The numbers that the harness prints, by name."""
    done = subprocess.run(
        [*emulator, program], check=True, timeout=_TIMEOUT_S, capture_output=True, text=True
    )
    found = {}
    for index, line in enumerate(done.stdout.splitlines()):
        name, *values = line.split()
        found[f"{name} {index}" if name == "alone" else name] = np.array(values, dtype=np.float64)
    return found


def _compared(
    build: Build,
    right: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]],
    found: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]],
) -> list[str]:
    """What differs; integer products and the comparisons of rows alone are equal in every digit."""
    differences = [] if [*right] == [*found] else [f"{build.name}: other results than {[*right]}"]
    for name, wanted in right.items():
        own = found[name]
        error = float(np.linalg.norm(own - wanted) / np.linalg.norm(wanted))
        is_exact = name.startswith(("integer", "alone"))
        allowed = 0.0 if is_exact else _ALLOWED.get(name, _ALLOWED_IN_16_BITS)
        print(f"{build.name} {name}: relative difference {error:.2g}")
        if not error <= allowed or (name.startswith("alone") and not own.all()):
            differences.append(f"{build.name} {name}: {error:.2g}, allowed {allowed:.2g}")
    return differences


if __name__ == "__main__":
    sys.exit(main())
