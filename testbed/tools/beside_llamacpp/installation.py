"""The programs of llama.cpp, found in a folder or built from its source."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import BadRequestError, DeadlineError

BENCH, QUANTIZE = "llama-bench", "llama-quantize"
RPC_SERVERS = ("ggml-rpc-server", "rpc-server")  # the name of today, and the former name
BUILD_S, QUANTIZE_S = 5400.0, 1800.0
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "GGML_RPC": "ON",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
}


@dataclass(frozen=True)
class LlamaCpp:
    """The three programs that the benchmark runs, as paths."""

    bench: Path
    quantizer: Path
    rpc_server: Path

    @classmethod
    def at(cls, folder: Path, build: Path) -> LlamaCpp:
        """Return the programs of a folder; a source folder is built in `build` first.

        Raises:
            BadRequestError: when the folder holds neither the programs nor the source, or the build fails.
            DeadlineError: when the build takes too long.
        """
        found = _programs(folder)
        if found is not None:
            return found
        if not (folder / "CMakeLists.txt").is_file():
            raise BadRequestError(
                f"{folder} holds neither {BENCH}, {QUANTIZE} and {RPC_SERVERS[0]} nor llama.cpp's source; "
                "clone https://github.com/ggml-org/llama.cpp, and give its folder or the folder of a build "
                "with -DGGML_RPC=ON"
            )
        if _programs(build) is None:
            _build(folder, build)
        built = _programs(build)
        if built is None:
            raise BadRequestError(f"building {folder} in {build} made no {BENCH}, {QUANTIZE} and RPC server")
        return built

    def quantize(self, source: Path, target: Path, kind: str) -> None:
        """Write a GGUF file again in another type, as llama-quantize names it."""
        run_program([str(self.quantizer), str(source), str(target), kind], QUANTIZE_S)


def run_program(command: Sequence[str], timeout_s: float) -> str:
    """Run a program to its end and return its standard output.

    Raises:
        BadRequestError: when it fails.
        DeadlineError: when it has not ended in time; it is killed then.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"{command[0]} had not ended after {timeout_s:g} s") from error
    except OSError as error:
        raise BadRequestError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        tail = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise BadRequestError(f"{' '.join(command)} failed with status {done.returncode}: {tail}")
    return done.stdout


def _build(source: Path, build: Path) -> None:
    rpc_text = (source / "tools" / "rpc" / "CMakeLists.txt").read_text(encoding="utf-8")
    rpc_server = RPC_SERVERS[0] if RPC_SERVERS[0] in rpc_text else RPC_SERVERS[1]
    options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    run_program(["cmake", "-S", str(source), "-B", str(build), *options], BUILD_S)
    targets = ["--target", BENCH, QUANTIZE, rpc_server]
    run_program(["cmake", "--build", str(build), "-j", str(os.cpu_count() or 1), *targets], BUILD_S)


def _programs(folder: Path) -> LlamaCpp | None:
    for place in (folder, folder / "bin", folder / "build" / "bin"):
        servers = [place / name for name in RPC_SERVERS if (place / name).is_file()]
        if servers and (place / BENCH).is_file() and (place / QUANTIZE).is_file():
            return LlamaCpp(place / BENCH, place / QUANTIZE, servers[0])
    return None
