"""The states that the rows of a forward update."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.arrays import IntArray
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps


@dataclass(frozen=True, eq=False)
class UpdatedStates:
    """The states that consecutive rows of a session update.

    Attributes:
        cached, context, tail_parents: as of SessionRows.
    """

    states: RowStates
    cached: int
    context: int
    tail_parents: IntArray

    def steps(self, rows: int) -> UpdateSteps:
        """The steps of `rows` rows, whose states have taken the context in."""
        return self.states.steps(self.cached, rows, self.tail_parents)

    @property
    def first(self) -> int:
        """The place of the first row among the recent rows."""
        return self.states.index_of(self.cached)
