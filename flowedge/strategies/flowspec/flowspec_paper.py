"""FlowSpec as its paper runs it: turn by turn, with the drafting of each turn inside the turn."""

from __future__ import annotations

from typing import ClassVar

from flowedge.core.tree import ROOT
from flowedge.strategies.base import Command, Grow
from flowedge.strategies.flowspec.segmented import SegmentedRounds
from flowedge.strategies.growth import Growth, best_absent
from flowedge.strategies.settings import TreeSettings


class FlowSpecPaper(SegmentedRounds):
    """Segmented rounds (which see) with the tree expansion of section 3.4.

    - Turns (3.1). In a turn D0 verifies what came back, prunes, and drafts an expansion to its full depth;
      "the newly generated draft portion then serves as the input for V1 in the next step". So the drafting
      runs beside the stages' computing, and what comes back meanwhile waits for the turn to end: a turn is as
      long as D0 takes for it, or a stage, whichever is longer.
    - Context-aware expansion is the draft of a turn that moved the root: d_exp layers from the new root, the
      best L_exp nodes of them merged, and what is new is a single segment (L_exp = -1 in A.1), even beyond
      L_max. DESIGN's rule for nodes in both trees holds: they take the new score.
    - Score-aware expansion is the draft of a turn without an update: T_base is deepened by d_se layers and
      its best L_se nodes that T lacks are a segment. The paper says so of a segment that came back empty;
      where the merge had nothing new a segment would be missing just the same, so T_base is deepened then
      too.
    """

    name: ClassVar[str] = "flowspec_paper"

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(settings)
        self._expanding = False
        self._deepening = False
        self._moved = False  # the root has, since the last expansion began

    @property
    def takes_results(self) -> bool:
        return not self._expanding

    def take_growth(self) -> None:
        if not self._expanding:
            super().take_growth()
            return
        self._expanding = False
        self.segment_rows = self.settings.max_draft_rows
        base, settings = self.growth.base, self.settings
        if self._deepening:
            self.tree.merge(base, best_absent(base, self.tree, settings.deepen_nodes))
        else:
            self.tree.merge(base, base.best(settings.expand_nodes))
            self.tree.drop_unsent_beyond(settings.max_draft_rows)

    def moved(self) -> None:
        self._moved = True

    def proceed(self) -> list[Command]:
        commands = self.enter()
        if self._expanding or not self.segment_rows:
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
        self._expanding, self._deepening, self._moved = True, False, False
        return self.growth.next_layer()

    def _score_aware(self) -> Grow:
        self._expanding = self._deepening = True
        self.growth.deepen(self.settings.deepen_layers)
        return self.growth.next_layer()

    def begin(self, token: int, context: int) -> list[Command]:
        self._moved = False
        return super().begin(token, context)
