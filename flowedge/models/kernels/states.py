"""The states of a session in recurrent layers, and a forward's steps, as the kernels are told."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.arrays import IntArray
from flowedge.models.kernels.structures import StatesFields, StepsFields
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import Steps


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

    def steps(self, rows: int) -> Steps:
        """The steps of `rows` rows, whose states have taken the context in."""
        return self.states.steps(self.cached, rows, self.tail_parents)

    @property
    def place(self) -> int:
        """The place of the first row among the recent rows."""
        return self.states.place(self.cached)


def states_fields(states: RowStates, recurrent: Sequence[int], layers: int) -> ctypes.Array[StatesFields]:
    """The states of each layer of a block, of which the layers with the indices `recurrent` have some."""
    fields = (StatesFields * layers)()
    state, recent = states.states, states.recent
    for index, layer in enumerate(recurrent):
        fields[layer] = StatesFields(
            state.data_ptr() + index * state.stride(0) * state.itemsize,
            recent.data_ptr() + index * recent.stride(0) * recent.itemsize,
        )
    return fields


def steps_fields(steps: Steps, first: int) -> StepsFields:
    """Steps, whose arrays the caller keeps; `first` is the place of the forward's first row."""
    arrays = (steps.rows, steps.sources, steps.targets, steps.outputs)
    return StepsFields(steps.count, *(each.ctypes.data for each in arrays), steps.places, first)
