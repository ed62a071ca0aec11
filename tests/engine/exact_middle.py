"""Middle models in exact arithmetic, and a check of all that they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.engine.jobs import Forward, ForwardBatch, ForwardOutcome, StageJob, StageResult
from flowedge.strategies.commands import Command
from flowedge.strategies.events import Predicted, Prefilled, StrategyEvent
from flowedge.strategies.published.hierarchy import Hierarchy
from flowedge.strategies.published.pipespec import PipeSpec, PipeSpecSync
from flowedge.strategies.settings import HierarchySettings, LookaheadSettings
from tests.engine.exact_model import ExactStage, attend, mix, row_kv, token_of
from tests.support.session_jobs import run_alone


def answer(hidden: int, position: int, vocab: int, doubt: int) -> int:
    """Return the token of a middle model: the target's, but a wrong one at one position in `doubt`."""
    return (token_of(hidden, position, vocab) + (mix(hidden) % doubt == 0)) % vocab


class ExactLayers(ABC):
    """A run of layers of the exact model on one stage."""

    def __init__(self, layers: Sequence[ExactStage]) -> None:
        self.layers = list(layers)

    @property
    def caches(self) -> list[str]:
        return [name for layer in self.layers for name in layer.caches]

    def run(self, job: StageJob) -> StageResult:
        if isinstance(job, ForwardBatch):
            return [self._run_forward(forward) for forward in job.forwards]
        for layer in self.layers:
            layer.run(job)
        return None

    @abstractmethod
    def _run_forward(self, job: Forward) -> ForwardOutcome: ...


class ExactMiddle(ExactLayers):
    """A model of the target's layers, that answers each row with a token."""

    def __init__(self, num_stages: int, vocab: int, doubt: int) -> None:
        super().__init__([ExactStage(index) for index in range(num_stages)])
        self.num_stages, self.vocab, self.doubt = num_stages, vocab, doubt

    def _run_forward(self, job: Forward) -> Payload | None:
        hidden = None
        for layer in self.layers:
            hidden = run_alone(layer, job)
            job.payload = hidden if hidden is not None else job.payload
        if hidden is None:
            return None
        rows = zip(hidden[:, 0].tolist(), job.positions.tolist(), strict=True)
        return np.array([answer(h, p + 1, self.vocab, self.doubt) for h, p in rows], dtype=np.int32)

    def alone(self, tokens: Sequence[int]) -> list[int]:
        """Return the answer to each row of a text, computed from the start and without a cache."""
        inputs = list(tokens)
        for stage in range(self.num_stages):
            seen = accumulate(row_kv(stage, value, position) for position, value in enumerate(inputs))
            inputs = list(map(attend, inputs, seen))
        return [answer(hidden, p + 1, self.vocab, self.doubt) for p, hidden in enumerate(inputs)]


class CheckedHierarchy(Hierarchy):
    """Every prediction is held against the middle model alone, on the text that the chain now has."""

    prompt: list[int]
    middles: Sequence[ExactMiddle]
    compared = 0

    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]:
        if isinstance(event, Predicted):
            chain, start = self.chain, len(self.prompt)
            text = [*self.prompt, *chain.tokens(start, chain.end)]
            stop = event.position + len(event.tokens)
            alone = self.middles[event.route - 1].alone(text[:stop])
            assert list(event.tokens) == alone[event.position : stop]
            self.compared += len(event.tokens)
        commands = super().handle(event)
        assert not (isinstance(event, Prefilled) and self.chain.rows != 1)
        ends = [self.chain.verified(level) for level in range(len(self.routes))]
        assert ends == sorted(ends, reverse=True), "a buffer is a prefix of the one before it"
        assert ends[-1] > self.chain.root
        assert self.chain.rows <= self.max_draft_rows
        return commands


class CheckedPipeSpec(CheckedHierarchy, PipeSpec):
    """PipeSpec with its predictions checked."""


class CheckedPipeSpecSync(CheckedHierarchy, PipeSpecSync):
    """Its synchronous form, of which one model works at a time."""

    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]:
        commands = super().handle(event)
        assert self.drafting.drafts + sum(map(len, self.batches.values())) <= 1
        return commands


def checked_hierarchy(
    name: str, options: Mapping[str, float], prompt: Sequence[int], middles: Sequence[ExactMiddle]
) -> CheckedHierarchy | None:
    """Return the strategy of this name with its predictions checked; None if it has no middle models."""
    made: CheckedHierarchy
    if name == PipeSpec.name:
        made = CheckedPipeSpec(HierarchySettings.from_options(options))
    elif name == PipeSpecSync.name:
        made = CheckedPipeSpecSync(LookaheadSettings.from_options(options))
    else:
        return None
    made.prompt, made.middles = list(prompt), middles
    return made
