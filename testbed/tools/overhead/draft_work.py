"""The draft node's own work for a segment: its state machine, without models, links and sampling."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.request import Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams, walk
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.draft_node import DraftNode
from flowedge.engine.draft_session import DraftNodeSpec
from flowedge.engine.jobs import DraftJob, DraftResult, Forward, GrowDraft, StageJob, Verify
from flowedge.engine.stage import Stage, StageSpec
from flowedge.simulate.fixed_costs import FixedCosts
from flowedge.simulate.virtual_pipeline import VirtualPipeline
from flowedge.strategies.registry import make_strategy

_STAGES = 4
_VOCAB = 32_000
_TIMED = ("receive", "next_job", "finish", "next_outbound", "next_express", "next_output")
# How often the target draws the drafter's first, second and third choice; otherwise none of them.
_CHOICES = (0.70, 0.10, 0.05)


@dataclass(frozen=True)
class DraftWork:
    """The draft node's own time in one generation, without the prefill.

    Attributes:
        seconds: by method of the state machine.
    """

    context: int
    segments: int
    tokens: int
    seconds: dict[str, float]

    @property
    def per_segment_s(self) -> float:
        return sum(self.seconds.values()) / max(1, self.segments)


def measure_draft_work(context: int, width: int, new_tokens: int) -> DraftWork:
    """Run FlowSpec over a prompt of `context` tokens, on a virtual pipeline whose stages compute nothing."""
    node = _TimedDraftNode(width, context + new_tokens + 1024)
    stages = [Stage(f"v{index}", StageSpec(index == 0, width, _VOCAB, "float16")) for index in range(_STAGES)]
    pipeline = VirtualPipeline(node, _Dice(), stages, [_Blank(width) for _ in stages], FixedCosts())
    prompt = tuple(np.random.default_rng(1).integers(100, _VOCAB, context).tolist())
    pipeline.start(Request("overhead", prompt, SamplingParams(), new_tokens))
    while not any(isinstance(timed.output, Tokens) for timed in pipeline.outputs):
        pipeline.step()
    node.seconds.clear()
    pipeline.run()
    outputs = [timed.output for timed in pipeline.outputs]
    finished = outputs[-1]
    assert isinstance(finished, Finished), finished
    tokens = sum(len(output.token_ids) for output in outputs if isinstance(output, Tokens))
    return DraftWork(context, finished.counters.segments, tokens, dict(node.seconds))


class _TimedDraftNode(DraftNode):
    """A draft node that counts the time of the calls that a driver makes."""

    def __init__(self, width: int, max_positions: int) -> None:
        super().__init__(
            "d0",
            DraftNodeSpec(width, dtype="float16", max_positions=max_positions),
            lambda request: make_strategy(request.strategy, request.strategy_options),
            _NoText,
        )
        self.seconds: dict[str, float] = {}
        self._inside = False
        for name in _TIMED:
            setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any) -> Any:
            if self._inside:
                return method(*arguments)
            self._inside = True
            started = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
                self._inside = False

        return call


class _NoText:
    def push(self, token: int) -> str:  # noqa: ARG002
        return "."

    def flush(self) -> str:
        return ""


class _Blank:
    """A stage whose hidden states are all zeros."""

    def __init__(self, width: int) -> None:
        self._width = width

    def run(self, job: StageJob) -> Payload | None:
        if isinstance(job, Forward):
            return np.zeros((job.num_rows, self._width), dtype=np.float16)
        return None


class _Dice:
    """A drafter that proposes tokens 0, 1, 2, .. and a target that draws them as `_CHOICES` says."""

    def run(self, job: DraftJob) -> DraftResult:
        if isinstance(job, GrowDraft):
            shape = (len(job.nodes), job.width)
            tokens = np.broadcast_to(np.arange(job.width, dtype=np.int64), shape).copy()
            scores = np.random.default_rng(job.growth).uniform(0.0, 0.2, shape) - 0.4 - 1.1 * tokens
            return DraftLayer(tokens, scores)
        if isinstance(job, Verify):
            return walk(job.tokens.tolist(), job.parents.tolist(), lambda row: _draw(int(job.positions[row])))
        return None


def _draw(position: int) -> int:
    dice = np.random.default_rng(position).random()
    for token, bound in enumerate(np.cumsum(_CHOICES)):
        if dice < bound:
            return token
    return _VOCAB - 1
