"""The states of a session in the recurrent layers of a block, and what its recent rows update them by."""

from __future__ import annotations

import math

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import PrefixLostError, ProtocolError
from flowedge.models.families.parts import Recurrence
from flowedge.models.host.copies import to_device
from flowedge.models.recurrent.row_steps import UpdateSteps, steps_of_context, steps_of_drafts

_LEAST_ROOM = 16  # recent rows that there is memory for at once
_LARGE = 4  # times the memory that is needed; then memory is given back


class RowStates:
    """What a session's rows own in the recurrent layers of a block.

    The state of a draft row is its parent's, one update further. A state is large beside what it is updated
    by, so that one state is held: that behind the first `taken` rows, which are committed. Each row after
    them is held as what it updates by, and a forward computes the states on its rows' paths from the held
    one. A row's bits follow from its path alone, whatever else is drafted and however rows are divided.

    Attributes:
        taken: rows that the held state has taken in.
        states: float32 [layers, *state_shape] of the recurrence.
        recent: float32 [layers, inputs - 1 + room, row_values], by what the last rows before `taken` and all
            rows since update.
    """

    def __init__(self, net: Recurrence, layers: int, device: torch.device | str) -> None:
        """Begin with no rows in `layers` recurrent layers."""
        self._net, self._before = net, net.inputs - 1
        self.taken = self._rows = 0
        self.states = torch.zeros((layers, *net.state_shape), device=device)
        self.recent = torch.zeros((layers, self._before + _LEAST_ROOM, net.row_values), device=device)

    @property
    def nbytes(self) -> int:
        return self.states.nbytes + self.recent.nbytes

    def index_of(self, slot: int) -> int:
        """The place in `recent` of the row in a slot of the KV cache."""
        return self._before + slot - self.taken

    def steps_to(self, context: int) -> UpdateSteps:
        """The steps that take the committed rows below `context` into the state.

        Raises:
            ProtocolError: when rows of it were never computed.
        """
        if context - self.taken > self._rows:
            raise ProtocolError(
                f"a context of {context} rows, of which {self.taken + self._rows} were computed"
            )
        return steps_of_context(context - self.taken, self._net.inputs)

    def take(self, context: int) -> None:
        """Note that the state has taken in the rows below `context`, in all layers.

        Raises:
            ProtocolError: when it has taken in more rows: they cannot be taken back.
        """
        if context < self.taken:
            raise ProtocolError(f"a context of {context} rows, and the state is behind row {self.taken}")
        rows = context - self.taken
        if rows:
            self._rows -= rows
            held = self._before + self._rows
            moved = self.recent[:, rows : rows + held].clone()
            with torch.inference_mode():
                if self.recent.shape[1] > _LARGE * (held + _LEAST_ROOM):  # as after a chunk of a prompt
                    self.recent = torch.nn.functional.pad(moved, (0, 0, 0, _LEAST_ROOM))
                else:
                    self.recent[:, :held] = moved
            self.taken = context

    def steps(self, cached: int, rows: int, tail_parents: IntArray) -> UpdateSteps:
        """The steps of a forward of `rows` rows, and room for what they update by.

        Args:
            cached, tail_parents: as of SessionRows, whose context the state has taken in.
        """
        self._rows = cached + rows - self.taken
        missing = self._before + self._rows - self.recent.shape[1]
        if missing > 0:
            room = max(missing, self.recent.shape[1])
            self.recent = torch.nn.functional.pad(self.recent, (0, 0, 0, room))
        return steps_of_drafts(tail_parents - self.taken, rows, self._net.inputs)

    def gather(self, base: int, slots: IntArray) -> None:
        """Have the rows in `slots` of the KV cache, which ascend, follow row `base`; no other is held."""
        places = np.arange(self._before + base - self.taken)
        self._move(len(places) + slots.size, np.append(places, self.index_of(0) + slots))
        self._rows = base + slots.size - self.taken

    @torch.inference_mode()
    def copy(self, source: RowStates, slots: IntArray) -> None:
        """Begin with the rows in `slots` of another session's cache.

        Raises:
            PrefixLostError: when its state has taken in more than these.
        """
        if slots.size < source.taken:
            raise PrefixLostError(
                f"{slots.size} rows are asked for, and the state of the recurrent layers is behind row "
                f"{source.taken}"
            )
        self.taken, self._rows = source.taken, slots.size - source.taken
        self.states.copy_(source.states)
        places = np.append(np.arange(self._before), source.index_of(0) + slots[source.taken :])
        (index,) = to_device(self.recent.device, places)
        self.recent = source.recent.index_select(1, index)

    @torch.inference_mode()
    def _move(self, count: int, places: IntArray) -> None:
        moved = places != np.arange(count)
        if moved.any():
            start = int(moved.argmax())
            (index,) = to_device(self.recent.device, places[start:])
            self.recent[:, start:count] = self.recent.index_select(1, index)


def session_bytes(net: Recurrence) -> int:
    """The bytes of a session in one recurrent layer, with few recent rows."""
    recent = (net.inputs - 1 + _LEAST_ROOM) * net.row_values
    return (math.prod(net.state_shape) + recent) * torch.float32.itemsize
