"""Runs of llama-bench, and what they print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from testbed.tools.beside_llamacpp.installation import LlamaCpp, run_program

RUN_S = 900.0
WHOLE_MODEL = 99  # more layers than a model has: all of them go to the RPC servers


@dataclass(frozen=True)
class LlamaTest:
    """One test of a run.

    Attributes:
        prompt, generated: rows computed at once, and tokens computed one after the other; one of them is 0.
        seconds: of each repetition.
        build: commit and number of llama.cpp.
    """

    prompt: int
    generated: int
    threads: int
    seconds: tuple[float, ...]
    build: str


@dataclass(frozen=True)
class LlamaBench:
    """Runs of llama-bench with one GGUF file.

    Attributes:
        rpc: addresses of the RPC servers that hold the layers; empty for this process alone.
        commands: every command that was run.
    """

    llamacpp: LlamaCpp
    model: Path
    commands: list[str]
    rpc: tuple[str, ...] = ()

    def run(
        self,
        *,
        prompts: Sequence[int] = (),
        generated: Sequence[int] = (),
        threads: Sequence[int],
        cached: int = 0,
        all_logits: bool = False,
        repetitions: int,
    ) -> list[LlamaTest]:
        """Measure each number of prompt rows and of generated tokens with each number of threads.

        Args:
            cached: rows that are in the KV cache before.
            all_logits: whether all rows go through the last layer and the LM head, not the last row alone.

        Raises:
            BadRequestError: when llama-bench fails, or prints something else than expected.
            DeadlineError: when it takes too long.
        """
        command = [str(self.llamacpp.bench), "-m", str(self.model), "-o", "json"]
        command += ["-p", _numbers(prompts), "-n", _numbers(generated), "-t", _numbers(threads)]
        command += ["-d", str(cached), "-embd", str(int(all_logits)), "-r", str(repetitions)]
        if self.rpc:
            command += ["--rpc", ",".join(self.rpc), "-ngl", str(WHOLE_MODEL)]
        if " ".join(command) not in self.commands:
            self.commands.append(" ".join(command))
        return parse_tests(run_program(command, RUN_S))


def parse_tests(text: str) -> list[LlamaTest]:
    """Read the JSON that llama-bench prints.

    Raises:
        BadRequestError: when it is not what llama-bench prints.
    """
    try:
        return [_test(entry) for entry in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequestError(
            f"llama-bench printed no results that can be read ({error!r}): {text[:200]!r}"
        ) from error


def _test(entry: dict[str, Any]) -> LlamaTest:
    seconds = tuple(int(each) * 1e-9 for each in entry["samples_ns"])
    if not seconds or min(seconds) <= 0:
        raise ValueError("a test without times")
    build = f"{entry['build_commit']} ({entry['build_number']})"
    return LlamaTest(int(entry["n_prompt"]), int(entry["n_gen"]), int(entry["n_threads"]), seconds, build)


def _numbers(values: Sequence[int]) -> str:
    return ",".join(map(str, values)) or "0"
