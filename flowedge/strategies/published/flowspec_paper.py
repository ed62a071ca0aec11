"""FlowSpec as its paper runs it: turn by turn, with the drafting of each turn inside the turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowedge.core.tree import UNSENT
from flowedge.strategies.commands import Command, Grow
from flowedge.strategies.growth import best_absent
from flowedge.strategies.published.pruned_pp import PrunedPP
from flowedge.strategies.settings import TreeSettings


class FlowSpecPaper(PrunedPP):
    """Pruned PP with the tree expansion of section 3.4.

    - Turns (3.1). In a turn D0 verifies the returned segment, prunes, and drafts an expansion to its full
      depth; "the newly generated draft portion then serves as the input for V1 in the next step". So the
      drafting runs while the stages compute, and a segment that returns meanwhile waits for the turn to end.
      A turn takes as long as D0 or the slowest stage takes, whichever is longer.
    - Context-aware expansion follows a turn that moved the root. It grows d_exp layers from the new root and
      merges the best L_exp nodes; a node of both trees takes the new score. The new nodes are a single
      segment, as "L_exp = -1" of appendix A.1 says, even beyond L_max.
    - Score-aware expansion follows a turn that did not move the root. T_base is deepened by d_se layers, and
      its best L_se nodes that T lacks are a segment. The paper expands so when a segment came back empty.
      Here T_base is also deepened when a merge brought no new node, because a segment is missing then too.

    The options `context_aware` and `score_aware` leave an expansion out when they are 0. Without the
    context-aware expansion T_base stays that of the round, and the score-aware expansion follows every turn
    that leaves no node to send. Without both, this is Pruned PP.
    """

    name: ClassVar[str] = "flowspec_paper"

    def __init__(self, settings: TreeSettings) -> None:
        super().__init__(settings)
        self._expanding = False
        self._deepening = False
        self._moved = False  # whether the root has moved since the last expansion began

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

    def moved(self, tokens: Sequence[int]) -> None:
        if self.settings.context_aware:
            self._moved = True
        else:
            self.growth.follow(tokens)

    def proceed(self) -> list[Command]:
        commands = self.enter()
        if self._expanding or not self.segment_rows:
            return commands
        if self._moved:
            commands.append(self._context_aware())
        elif self._lacks_nodes and not self.growth.exhausted:
            commands.append(self._score_aware())
        return commands

    @property
    def _lacks_nodes(self) -> bool:
        """Whether the score-aware expansion is on, and a turn is free for nodes that the tree has not."""
        if not self.settings.score_aware:
            return False
        return self.gate.open and self.all_sent and self.rows_left > 0

    def _context_aware(self) -> Grow:
        self.growth = self.growth.successor(self.tree, self.settings.expand_depth)
        self._expanding, self._deepening, self._moved = True, False, False
        return self.growth.next_layer()

    def _score_aware(self) -> Grow:
        self._expanding = self._deepening = True
        self.growth.deepen(self.settings.deepen_layers)
        return self.growth.next_layer()

    def begin(self) -> list[Command]:
        self._moved = False
        return super().begin()


class FlowSpecNoSBD(FlowSpecPaper):
    """FlowSpec as its paper runs it, except that nodes are sent in tree order, layer by layer.

    A tree still has the best nodes by score, as in EAGLE-2, and only the order of sending changes. The paper
    does not name the order of this ablation. The new nodes of an expansion are sent layer by layer too.
    """

    name: ClassVar[str] = "flowspec_no_sbd"

    def choose(self, count: int) -> list[int]:
        unsent = np.flatnonzero(self.tree.rows == UNSENT)
        by_layer = unsent[np.argsort(self.tree.depths[unsent], kind="stable")]
        return [int(node) for node in by_layer[:count]]
