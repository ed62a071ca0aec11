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
        super().__init__(settings.max_draft_rows, settings.models)
        self._lookahead, self._most_batches = settings.lookahead, settings.batches

    def proceed(self) -> list[Command]:
        sends = [self.send(level) for level in range(1, 1 + len(self.routes)) if self._takes(level)]
        if self.drafting.has_work(self.chain, self.chain_rows):
            return [*sends, self.drafting.ask(self.chain)]
        return sends

    def _takes(self, level: int) -> bool:
        route = self.routes[level - 1]
        if not self.credits[route] or not self.has_unsent(level):
            return False
        if self._most_batches and len(self.batches[route]) >= self._most_batches:
            return False
        return self.drafts(level) >= self._lookahead or not self._works(level - 1)

    def _works(self, level: int) -> bool:
        """Return whether a model, or a model before it, computes tokens or is about to."""
        if level == 0:
            return self.drafting.drafts or self.drafting.has_work(self.chain, self.chain_rows)
        in_flight = self.batches[self.routes[level - 1]]
        return bool(in_flight) or self.has_unsent(level) or self._works(level - 1)


class PipeSpecSync(Hierarchy):
    """Synchronous speculative decoding (sections 4.2 and 4.4): one model works at a time.

    The target verifies `lookahead` tokens of the model before it, as figure 3 has it of all configurations.
    With two models the drafter drafts them. With three, M_1 verifies chains of the drafter until its own
    buffer has so many tokens; each chain is as long as M_1 can use, which adds a token of its own to it.
    """

    name: ClassVar[str] = "pipespec_sync"
    computed_alone: ClassVar[bool] = False

    def __init__(self, settings: LookaheadSettings) -> None:
        super().__init__(settings.lookahead + 1, settings.models)
        self._lookahead = settings.lookahead

    def proceed(self) -> list[Command]:
        if self.drafting.drafts or any(self.batches.values()):
            return []
        level = self._next_level()
        if level is None:
            return []
        if level == 0:
            return [self.drafting.ask(self.chain)]
        return [self.send(level)] if self.credits[self.routes[level - 1]] else []

    def _next_level(self) -> int | None:
        """Return the level of the model that works next: the largest that has all the tokens it waits for.

        None has work when the answer ends before the last token that was sent.
        """
        levels = range(1, 1 + len(self.routes))
        waits_for = self._lookahead
        for level in reversed(levels):
            if self.drafts(level) >= waits_for:
                return level
            waits_for -= self.drafts(level) + 1
        if self.drafting.has_work(self.chain, self.chain_rows):
            return 0
        # A drafter that proposes nothing more leaves the models to what there is.
        return next((level for level in levels if self.has_unsent(level)), None)
