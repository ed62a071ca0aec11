"""The builds of the kernels: what each needs from a CPU, and the compiler's options.

`setup.py` reads this file before FlowEdge is installed, so it imports nothing of FlowEdge.
"""

from __future__ import annotations

from dataclasses import dataclass

OPTIONS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    # A product and a sum become one operation only where the source says so; otherwise the bits of a row
    # would depend on the compiler's choice for each number of rows.
    "-ffp-contract=off",
    "-fno-math-errno",
    # gcc warns of its own header files: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)


@dataclass(frozen=True)
class Build:
    """The kernels for CPUs of a kind.

    Attributes:
        machine: the architecture, as `platform.machine` names it.
        flags: the features that the CPU needs, as /proc/cpuinfo names them.
        options: the compiler's options for these features.
    """

    name: str
    machine: str
    flags: frozenset[str]
    options: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return f"kernels_{self.name}.so"


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}

TILES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})

# From the most demanding to the least.
BUILDS = (
    Build(
        "amx",
        "x86_64",
        _AVX512 | {"avx512_bf16"} | TILES,
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-int8", "-mamx-bf16"),
    ),
    Build(
        "avx512bf16",
        "x86_64",
        _AVX512 | {"avx512_bf16"},
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    ),
    Build("avx512vnni", "x86_64", _AVX512, ("-march=x86-64-v4", "-mavx512vnni")),
    Build("avx2", "x86_64", _AVX2, ("-march=x86-64-v3",)),
    Build("dotprod", "aarch64", frozenset({"asimd", "asimddp"}), ("-march=armv8.2-a+dotprod",)),
    Build("neon", "aarch64", frozenset({"asimd"}), ("-march=armv8-a",)),
)


def builds_of(machine: str) -> tuple[Build, ...]:
    """The builds for an architecture, from the most demanding to the least."""
    return tuple(build for build in BUILDS if build.machine == machine)
