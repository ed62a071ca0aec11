"""PipeSpec: a hierarchy of models, each an asynchronous producer for the next (pipespec.txt)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.commands import Command
from flowedge.strategies.published.hierarchy import Hierarchy
from flowedge.strategies.settings import HierarchySettings, LookaheadSettings


class PipeSpec(Hierarchy):
    """Algorithm 1: all models work at the same time. The choices that the paper leaves:

    - The drafter drafts whenever there is room (lines 8 and 9).
    - A model with a credit takes all tokens that its producer's buffer holds (line 11), while its earlier
      segments are still in flight. With `batches` = 1 it takes them when it has none in flight, which is the
      paper's loop.
    - With a `lookahead` (section 4.4; the paper's own choice is 0) a model waits until there are so many
      draft tokens, as long as a model before it works.
    - The target verifies in segments that flow through its stages one behind the other, and only its draws
      are put out.
    - The paper bounds no buffer. Here the chain has at most `max_draft_rows` tokens from the last drawn token
      on.
    """

    name: ClassVar[str] = "pipespec"

    def __init__(self, settings: HierarchySettings) -> None:
        super().__init__(settings.max_draft_rows, settings.models, settings.lookahead)
        self._most_batches = settings.batches

    def proceed(self) -> list[Command]:
        sends = [self.send(level) for level in range(1, 1 + len(self.routes)) if self._takes(level)]
        if self.drafting.has_work(self.chain, self.chain_rows):
            return [*sends, self.drafting.ask(self.chain)]
        return sends

    def _takes(self, level: int) -> bool:
        route, (start, stop) = self.routes[level - 1], self.unsent(level)
        if not self.credits[route] or start >= stop:
            return False
        if self._most_batches and len(self.batches[route]) >= self._most_batches:
            return False
        return self.has_lookahead(level) or not self._works(level - 1)

    def _works(self, level: int) -> bool:
        """Return whether a model, or a model before it, computes tokens or is about to."""
        if level == 0:
            return self.drafting.drafts or self.drafting.has_work(self.chain, self.chain_rows)
        start, stop = self.unsent(level)
        return bool(self.batches[self.routes[level - 1]]) or start < stop or self._works(level - 1)


class PipeSpecSync(Hierarchy):
    """Synchronous speculative decoding (sections 4.2 and 4.4): one model works at a time.

    Whenever a model has finished, the largest model works for which the model before it has `lookahead`
    tokens. If there is none, the drafter drafts. So with two models the drafter drafts a chain of `lookahead`
    tokens, which the target verifies. With three, M_1 verifies such chains until its own buffer has as many
    tokens for the target; the paper says that each model waits for the tokens of the model before it, and not
    for how many.
    """

    name: ClassVar[str] = "pipespec_sync"
    computed_alone: ClassVar[bool] = False

    def __init__(self, settings: LookaheadSettings) -> None:
        # Each level has at most `lookahead` tokens for the next when it is verified, and adds one.
        super().__init__((settings.models - 1) * settings.lookahead + 1, settings.models, settings.lookahead)

    def proceed(self) -> list[Command]:
        if self.drafting.drafts or any(self.batches.values()):
            return []
        levels = range(1, 1 + len(self.routes))
        full = [level for level in reversed(levels) if self.has_lookahead(level)]
        if not full and self.drafting.has_work(self.chain, self.chain_rows):
            return [self.drafting.ask(self.chain)]
        # A drafter that proposes nothing more leaves the models to what there is.
        left = full or [level for level in levels if self.unsent(level)[0] < self.unsent(level)[1]]
        return [self.send(level) for level in left[:1] if self.credits[self.routes[level - 1]]]
