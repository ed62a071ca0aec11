"""Run everything that has to be seen on a GPU once, and write what it said to a folder.

Each step is a process with a time limit; a step that fails does not keep the others from running. The last
lines say which steps passed. The exact steps share a file of results in the folder: a call with the same
folder and `--only exact` goes on where an earlier call ended.
Run: python -m testbed.tools.on_gpu --out DIR [--device cuda:0]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.choice import STRATEGIES
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.report.markdown import table

PROMPT = "Write a JavaScript function that reverses a string, and explain each step."
NEW_TOKENS = 96
LAYOUTS = (("bfloat16", "none"), ("bfloat16", "int4"), ("bfloat16", "nf4"), ("bfloat16", "int8"))
TEMPERATURES = (0.0, 1.0)
EXACT_RESULTS = "exact-runs.jsonl"  # of all exact steps


@dataclass(frozen=True)
class GpuStep:
    """A command of this Python, its time limit in seconds and variables for its environment."""

    name: str
    arguments: Sequence[str]
    limit_s: float = 300.0
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, out: Path) -> tuple[bool, float]:
        """Run the command, and write its output to a file; return whether it succeeded and its seconds."""
        started = time.monotonic()
        with (out / f"{self.name}.log").open("wb") as log:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", *self.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    timeout=self.limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
                log.write(f"it did not end within {self.limit_s:g} s\n".encode())
        return code == 0, time.monotonic() - started


def steps(device: str, out: Path, model: Path, sizes: Sequence[str], tokens: int) -> Iterator[GpuStep]:
    """Yield all steps. Steps that need the random model come after the step that writes it.

    Args:
        out: the folder of all output; model: the directory for the random model.
        sizes: arguments of random_model; tokens: compared tokens of each exact step.
    """
    agents = {"FLOWEDGE_AGENT__DEVICE": device}
    yield GpuStep("facts", ["testbed.tools.gpu.facts", "--device", device])
    yield GpuStep("trial", ["flowedge.models.check.compute_probe", device])
    yield GpuStep("products", ["testbed.tools.check_products", "--device", device])
    yield GpuStep(
        "kernels",
        [
            "testbed.tools.bench_quant",
            "--device",
            device,
            "--dtype",
            "float16",
            "bfloat16",
            "--repeats",
            "20",
        ],
    )
    yield GpuStep(
        "profile",
        ["flowedge.cli.main", "profile", "--device", device, "--out", str(out / "profile"), "--force"],
    )
    for quant in ("none", "int4", "nf4", "int8"):
        command = ["testbed.tools.gpu.graph_costs", "--device", device, "--quant", quant]
        yield GpuStep(f"graphs-{quant}", [*command, "--shapes", "1B", "7B"], limit_s=600)
        yield GpuStep(f"graphs-exact-{quant}", [*command, "--shapes", "1B", "7B", "--exact"], limit_s=600)
    head_costs = ["testbed.tools.gpu.head_costs", "--device", device, "--shapes", "1B", "7B"]
    yield GpuStep("graphs-head", head_costs, limit_s=600)
    yield GpuStep("graphs-head-recall", [*head_costs, "--recall"], limit_s=600)
    yield GpuStep(
        "graphs-tests",
        ["pytest", "-q", "-n", "0", "tests/models/cuda_graphs", "tests/drafting/test_static_heads.py"],
        limit_s=600,
    )
    yield GpuStep("families", ["pytest", "-q", "-n", "0", "tests/models/test_gpu_families.py"], limit_s=600)
    for strategy in STRATEGIES:
        if not isinstance(make_strategy(strategy, {}), HierarchicalStrategy):
            yield GpuStep(
                f"check-without-graphs-{strategy}",
                _generate("bundled", "bfloat16", "none", strategy, 0.0, "--check"),
                environment={**agents, "FLOWEDGE_AGENT__CUDA_GRAPHS": "false"},
            )
    for dtype, quant in LAYOUTS:
        for strategy in STRATEGIES:
            if isinstance(make_strategy(strategy, {}), HierarchicalStrategy):
                continue
            for temperature in TEMPERATURES:
                yield GpuStep(
                    f"check-{dtype}-{quant}-{strategy}-T{temperature:g}",
                    _generate("bundled", dtype, quant, strategy, temperature, "--check"),
                    environment=agents,
                )
    for precision in ("bf16", "int8", "int4", "nf4"):
        yield GpuStep(
            f"exact-{precision}",
            [
                *("testbed.tools.exact.runs", "--device", device, "--precision", precision),
                *("--tokens", str(tokens), "--results", str(out / EXACT_RESULTS)),
            ],
            limit_s=1800,
        )
    yield GpuStep("random-model", ["testbed.tools.random_model", str(model), *sizes], limit_s=900)
    for quant in ("none", "int4", "nf4"):
        yield GpuStep(
            f"random-model-{quant}",
            _generate(str(model), "bfloat16", quant, "auto", 0.0, "--drafter", "ngram"),
            limit_s=900,
            environment=agents,
        )


def _generate(
    model: str, dtype: str, quant: str, strategy: str, temperature: float, *more: str
) -> Sequence[str]:
    return [
        *("flowedge.cli.main", "generate", "--stages", "4", "--model", model, "--dtype", dtype),
        *("--quant", quant, "--strategy", strategy, "--temperature", f"{temperature:g}", "--seed", "7"),
        *("--max-new-tokens", str(NEW_TOKENS), "--prompt", PROMPT, *more),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.on_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="*", default=[], help="run the steps whose names begin so")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of each exact run")
    parser.add_argument(
        "--sizes",
        nargs=argparse.REMAINDER,
        default=[],
        help="arguments of random_model; a 7B shape by default",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory(prefix="flowedge-") as directory:
        model = Path(directory) / "model"
        for step in steps(options.device, options.out, model, options.sizes, options.tokens):
            if options.only and not step.name.startswith(tuple(options.only)):
                continue
            passed, seconds = step.run(options.out)
            lines.append([step.name, "passed" if passed else "FAILED", f"{seconds:.0f}"])
            print(" ".join(lines[-1]), flush=True)
    summary = table(["step", "result", "seconds"], lines)
    (options.out / "summary.md").write_text(f"{summary}\n", encoding="utf-8")
    if any(line[1] == "FAILED" for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
