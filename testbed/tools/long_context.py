"""Measure how the work of a segment grows with the context, in one generation of thousands of tokens.

Times are CPU time of one thread, so that other work of the machine matters little.

The bundled pair runs as a pipeline in this process with its positions raised to 32,768; its text is of no
use beyond 2,048 positions, its computation is the same. Run: python -m testbed.tools.long_context
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest import mock

import numpy as np
import torch

from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.heads.draft_head import CachedAttention
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import DraftModels, draft_node_spec
from flowedge.engine.jobs import DraftBatch, DraftExecutor, ForwardBatch, StageExecutor
from flowedge.models.attention.kv_store import kv_row_bytes
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.session_rows import SessionsAttention
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import machine_pipeline
from flowedge.planning.split import even_split, layer_ranges
from flowedge.text.tokenizer import StreamDecoder
from flowedge_testbed.report.markdown import table

POSITIONS = 32_768
WINDOW = 500  # tokens of context whose segments are averaged
BANDWIDTH_BYTES = 1 << 28
ATTENTION, STAGE, DRAFTER, DRAFTING, VERIFYING, MACHINES = (
    "stages: attention",
    "stages: all else",
    "drafter: attention",
    "drafter: all else",
    "verification",
    "state machines",
)
PARTS = (STAGE, ATTENTION, VERIFYING, DRAFTING, DRAFTER, MACHINES)
Job = TypeVar("Job")


@dataclass
class WorkByContext:
    """Seconds of each part of the work and the number of segments, by window of the context.

    Attributes:
        context: tokens that the last computed row saw.
    """

    seconds: dict[str, dict[int, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    segments: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    context: int = 0
    inner: float = 0.0  # seconds within the call that is timed now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time, less that of timed calls inside, counted for a part."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            outside, self.inner = self.inner, 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                passed = time.thread_time() - started
                self.seconds[part][self.context // WINDOW] += passed - self.inner
                self.inner = outside + passed

        return run


@dataclass(frozen=True)
class TimedExecutor(Generic[Job]):
    """An executor whose jobs are timed."""

    inner: Any
    work: WorkByContext
    first: bool = False

    def run(self, job: Job | DraftBatch) -> Any:
        part = STAGE
        if isinstance(job, ForwardBatch):  # of one session
            self.work.context = job.forwards[0].context
            self.work.segments[self.work.context // WINDOW] += self.first
        else:
            part = VERIFYING if isinstance(job, DraftBatch) and job.verifies else DRAFTING
        return self.work.timed(part, self.inner.run)(job)


def widened(directory: Path) -> Checkpoint:
    """Return the bundled model with POSITIONS positions, in a directory."""
    bundled = Checkpoint.open("bundled").directory
    for file in bundled.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file)
    config = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}))
    return Checkpoint(directory)


def run(tokens: int, dtype_name: str, strategy: str, stages: int) -> tuple[WorkByContext, int]:
    """Generate so many tokens; return the work and the bytes of a token's keys and values."""
    work, dtype = WorkByContext(), torch_dtype(dtype_name)
    with tempfile.TemporaryDirectory(prefix="flowedge-") as directory:
        checkpoint = widened(Path(directory))
        layers = int(checkpoint.config.num_hidden_layers)
        models = DraftModels.load(checkpoint, ("bundled",), dtype_name)
        blocks = [
            LayerBlock.load(checkpoint, start, stop, dtype=dtype)
            for start, stop in layer_ranges(even_split(layers, stages))
        ]
    executors = [BlockExecutor(block) for block in blocks]
    drafting: DraftExecutor = TimedExecutor(models.executor, work)
    computing: list[StageExecutor] = [
        TimedExecutor(executor, work, first=number == 0) for number, executor in enumerate(executors)
    ]
    spec = draft_node_spec(
        checkpoint.config,
        models.executor.drafter,
        (),
        models.dtype,
        prefill_rows=128,
        num_stages=stages,
    )
    pipeline = machine_pipeline(
        spec,
        drafting,
        [(executor.stage_spec(), timed) for executor, timed in zip(executors, computing, strict=True)],
        FixedCosts(),
        make_text=lambda: StreamDecoder(models.tokenizer),
    )
    sampling = SamplingParams(temperature=1.0, seed=1)  # at temperature 0 the text would soon repeat itself
    request = Request("long", models.encode("Tell a long story."), sampling, tokens, strategy=strategy)
    timed = work.timed(ATTENTION, SessionsAttention.attend)
    timed_attend = work.timed(DRAFTER, CachedAttention.attend)
    with (
        mock.patch.object(CachedAttention, "attend", timed_attend),
        mock.patch.object(SessionsAttention, "attend", timed),
    ):
        pipeline.start(request)
        step = work.timed(MACHINES, pipeline.step)
        while step():
            pass
    finished = pipeline.outputs[-1].output
    assert isinstance(finished, Finished), finished
    return work, kv_row_bytes(checkpoint.architecture.cached_heads(0, layers), dtype)


def bytes_per_second() -> float:
    """Return the rate at which this machine reads memory on one thread."""
    values = torch.ones(BANDWIDTH_BYTES // 8, dtype=torch.int64)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - started)
    return values.nbytes / best


def report(work: WorkByContext, row_bytes: int) -> None:
    """Print ms a segment by context, a line fitted to each part, and the roofline of attention."""
    windows = sorted(window for window in work.segments if window)[:-1]  # the first has the prefill
    contexts = np.array([(window + 0.5) * WINDOW for window in windows])
    rate = bytes_per_second()
    columns = {
        part: np.array([1e3 * work.seconds[part][window] / work.segments[window] for window in windows])
        for part in PARTS
    }
    columns["roofline of the stages' attention"] = 1e3 * contexts * row_bytes / rate
    shown = [(place, each) for place, each in enumerate(contexts) if place % 2 == 1]
    lines = [
        [f"{context:.0f}", *(f"{values[place]:.2f}" for values in columns.values())]
        for place, context in shown
    ]
    fits = [np.polyfit(contexts / 1000, values, 1) for values in columns.values()]
    lines.append(["a segment at context 0", *(f"{fit[1]:.2f}" for fit in fits)])
    lines.append(["more for each 1,000 tokens", *(f"{fit[0]:+.3f}" for fit in fits)])
    print(table(["context", *columns], lines))
    count = sum(work.segments.values())
    print(f"\nms of CPU time a segment, {count} segments; memory is read at {rate / 1e9:.1f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.long_context", description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--stages", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work, row_bytes = run(options.tokens, options.dtype, options.strategy, options.stages)
    report(work, row_bytes)


if __name__ == "__main__":
    main()
