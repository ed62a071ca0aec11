"""SpecPipe-DB: SpecPipe with the levels of several requests in each pipeline step (specpipe.txt)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.commands import Command, Grow, Send
from flowedge.strategies.events import Prefilled, Returned, StrategyEvent, Verified
from flowedge.strategies.pipeline_steps import AwaitedLayer, PipelineSteps
from flowedge.strategies.published.stepwise import LevelBatchSettings, LevelByLevel


class SpecPipeDB(LevelByLevel):
    """SpecPipe's trees, one for each request, that go through the pipeline in the same steps.

    The paper says little of its batches: sections 4 (implementation), 4.4, and figures 16 and 17.

    - Packing (4, implementation): the rows of all requests of a step are one ragged tensor. Here they leave
      the draft node as one message, and each stage computes them in one forward, in attention apart.
    - Aligned steps (3.3, 4.4): each request sends one level a step. As many steps are in flight as there are
      groups of stages, and the next begins when the oldest has returned for all its requests (PipelineSteps).
      Where layers are still being drafted it waits for them ("a tree level is available at each pipeline
      step", 3.3.1).
    - Full levels (4.4): `width` is that of each request's tree. The paper names no other width for many
      requests, and explains the longer time between tokens by the larger batches.
    - Arrival: a request joins with its root, in the next step after its prompt.
    - Miss and end: the levels in flight of a request that misses are dead, and its new root goes with the
      next step. Levels of other requests in the same steps go on.

    A lone request gives the commands of SpecPipe with the same width.

    Deviations from the paper, beside those of LevelByLevel:

    - A stage leaves some of the levels of a step to its next forward where that gives more levels per time
      (engine/batching/forward_times.py); the paper's stages compute all levels of a step together. Levels
      left behind still count for their step, which ends with the last of them.
    - Prompts (4, implementation: new requests go first, as in vLLM): they go in chunks that delay levels by
      a bounded time (engine/batching/prefill_turns.py).
    - Memory is not paged (4, implementation): each session has a cache of its own.
    """

    name: ClassVar[str] = "specpipe_db"
    computed_alone: ClassVar[bool] = False

    def __init__(self, settings: LevelBatchSettings, steps: PipelineSteps | None = None) -> None:
        """steps: of the pipeline; None where the session is alone."""
        super().__init__(settings)
        self._steps = PipelineSteps() if steps is None else steps

    @property
    def may_send_segment(self) -> bool:
        return self._has_level and self._gate.may_send

    @property
    def awaits_layer(self) -> bool:
        if self._drafts.tree.num_sent >= self.settings.max_draft_rows:
            return False
        return not self._gate.may_send if self._has_level else self._drafting

    @property
    def awaited(self) -> AwaitedLayer | None:
        return None

    def expected(self) -> tuple[float, float]:
        return math.inf, 0.0  # its levels wait for no other session's layer

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._steps.join(self, self._groups(event.stages))
            case Verified() | Returned() if self._gate.oldest_lives:
                self._steps.take_back(self)
        commands = super().handle(event)
        if isinstance(event, Verified) and self._gate.idle:
            self._steps.flush(self)
        return commands

    def send_step(self) -> Sequence[Send | Grow]:
        if not self._steps.joins_step(self):
            return ()
        send = self._send_level()
        return [*([] if send is None else [send]), *self._draft()]

    def end(self) -> None:
        self._steps.leave(self)

    def _proceed(self) -> list[Command]:
        """Have the next level drafted; levels are sent with the steps."""
        return [*self._draft()]

    @property
    def _has_level(self) -> bool:
        """Whether the nodes of the next level are known, and there is room for one of them."""
        drafts = self._drafts
        if drafts.tree.num_sent >= self.settings.max_draft_rows:
            return False
        deepest = drafts.deepest()
        known = drafts.computed[deepest].all() and (drafts.proposed[deepest] >= 0).any()
        return bool(known) or bool(drafts.unsent())
