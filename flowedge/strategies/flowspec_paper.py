"""FlowSpec as its paper runs it: turn by turn, with the drafting of each turn inside the turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.base import Command, Grow
from flowedge.strategies.growth import Growth, best_absent, graft
from flowedge.strategies.segmented import SegmentedRounds
from flowedge.strategies.settings import TreeSettings
from flowedge.tree import ROOT


class FlowSpecPaper(SegmentedRounds):
    """Segmented rounds (which see) with the tree expansion of section 3.4.

    - Turns (3.1). In a turn D0 verifies what came back, prunes, and drafts an expansion to its full depth;
      "the newly generated draft portion then serves as the input for V1 in the next step", so the drafting
      runs beside the stages' computing, and makes a turn longer only where D0 is slower than a stage.
    - A segment that comes back while D0 still drafts is verified between two layers, because a draft node
      verifies first. As in the paper the expansion under way is finished, then pruned to the new root before
      it is sent (appendix A.1); what it has so far already counts for the continuous condition (3.3).
    - Context-aware expansion follows each turn that moved the root: d_exp layers from the new root, the best
      L_exp nodes of them merged, and what is new is a single segment (L_exp = -1 in A.1), even beyond L_max.
      DESIGN's rule for nodes in both trees holds: they take the new score.
    - Score-aware expansion follows a turn without an update: T_base is deepened by d_se layers and its best
      L_se nodes that T lacks are a segment. The paper says so of a segment that came back empty; where the
      merge had nothing new a segment would be missing just the same, so T_base is deepened then too.
    """

    name: ClassVar[str] = "flowspec_paper"

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(settings)
        self._drafting = True
        self._fresh = True  # the growth is that of the round's first tree
        self._deepened = False
        self._moved: list[int] = []  # tokens the root has moved along since the growth began

    def take_growth(self) -> None:
        fresh, self._fresh, self._drafting = self._fresh, False, False
        if fresh:
            super().take_growth()
            return
        self.segment_rows = self.settings.max_draft_rows
        self._merge()
        if not self._deepened:
            self.tree.drop_unsent_beyond(self.settings.max_draft_rows)

    def _merge(self) -> None:
        """Merge what the expansion has so far, as far as it is below the root, into the tree."""
        settings, base, root = self.settings, self.growth.base, ROOT
        for token in self._moved:
            child = base.child(root, token)
            if child is None:
                return
            root = child
        if self._deepened:
            nodes = best_absent(base, self.tree, settings.deepen_nodes, root)
        else:
            nodes = base.best(settings.expand_nodes)
        graft(self.tree, base, nodes, root)

    def find(self, node: int, token: int) -> int | None:
        found = super().find(node, token)
        if found is None and self._drafting and not self._fresh:
            self._merge()
            found = super().find(node, token)
        return found

    def follow(self, tokens: Sequence[int]) -> None:
        self._moved += tokens

    def proceed(self) -> list[Command]:
        commands = super().proceed()
        if self._drafting:
            return commands
        if self._moved:
            commands.append(self._context_aware())
        elif self.pace.open and self.all_sent and self.room and not self.growth.exhausted:
            commands.append(self._score_aware())
        return commands

    def _context_aware(self) -> Grow:
        settings, token = self.settings, int(self.tree.tokens[ROOT])
        number = self.growth.number + 1
        self.growth = Growth(number, token, self.tree.context, settings.top_k, settings.expand_depth)
        self._drafting, self._deepened, self._moved = True, False, []
        return self.growth.next_layer()

    def _score_aware(self) -> Grow:
        self._drafting = self._deepened = True
        self.growth.deepen(self.settings.deepen_layers)
        return self.growth.next_layer()

    def begin(self, token: int, context: int) -> list[Command]:
        self._drafting, self._fresh, self._deepened, self._moved = True, True, False, []
        return super().begin(token, context)
