"""Builds the kernels of flowedge/kernels, one library for each kind of CPU; all else is in pyproject.toml.

Without a C++ compiler FlowEdge is installed without kernels, and computes layers with torch.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("flowedge/kernels")


class BuildKernels(build_ext):
    """Compiles each build for this machine's architecture."""

    def run(self):
        folder = KERNELS if self.inplace else Path(self.build_lib) / KERNELS
        builds = runpy.run_path("flowedge/device/kernel_builds.py")
        wanted = builds["builds_of"](platform.machine())
        compiler = shutil.which(os.environ.get("CXX", "g++"))
        if compiler is None or not wanted:
            print(
                "no C++ compiler, or no kernels for this CPU: layers will be computed by torch",
                file=sys.stderr,
            )
            return
        folder.mkdir(parents=True, exist_ok=True)

        def compile_build(build):
            target = folder / build.file_name
            made = target.with_suffix(f".{os.getpid()}")
            source = KERNELS / "src" / "flowedge.cpp"
            subprocess.run([compiler, *builds["OPTIONS"], *build.options, "-o", made, source], check=True)
            made.replace(target)  # a process that has loaded the old library keeps it

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_build, wanted))

    def get_outputs(self):
        return [str(path) for path in (Path(self.build_lib) / KERNELS).glob("kernels_*.so")]

    def get_output_mapping(self):
        return {}


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform: the libraries know nothing of Python."""

    def get_tag(self):
        _, _, platform_tag = super().get_tag()
        return "py3", "none", platform_tag


setup(
    ext_modules=[Extension("flowedge.kernels.kernels", [])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
