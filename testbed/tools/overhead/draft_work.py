"""The draft node's own work for a segment: its state machine, without models, links and sampling."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowedge.core.request import Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.measuring.scripted_models import VOCAB, BlankStage, DiceDraft, SilentText
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.strategies.registry import make_strategy

_STAGES = 4
DTYPE = "float16"
_TIMED = ("receive", "poll", "finish")


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
    stages = [Stage(f"v{index}", StageSpec(index == 0, width, VOCAB, DTYPE)) for index in range(_STAGES)]
    pipeline = VirtualPipeline(
        node, DiceDraft(), stages, [BlankStage(width, DTYPE) for _ in stages], FixedCosts()
    )
    prompt = tuple(np.random.default_rng(1).integers(100, VOCAB, context).tolist())
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
            DraftNodeSpec(width, dtype=DTYPE, max_positions=max_positions),
            lambda request: make_strategy(request.strategy, request.strategy_options),
            SilentText,
        )
        self.seconds: dict[str, float] = {}
        self._inside = False
        for name in _TIMED:
            setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return method(*arguments, **named)
            self._inside = True
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
                self._inside = False

        return call
