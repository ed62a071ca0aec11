"""What recurrent layers ask of the rows of a forward, and what a session's rows ask of such a layer."""

from __future__ import annotations

from typing import Protocol

import torch

from flowedge.models.families.parts import Recurrence
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps


class RecurrentLayer(Protocol):
    """A layer whose rows update a state, in the place of attention.

    Attributes:
        index: the layer's index among the recurrent layers of its block.
    """

    index: int

    @property
    def net(self) -> Recurrence:
        """The sizes of the layer's recurrence."""

    def run(self, states: RowStates, steps: UpdateSteps, paths: torch.Tensor, rows: int) -> torch.Tensor:
        """Take the steps of a session's forward of `rows` rows; return what they read.

        Args:
            paths: `steps.rows` on the device.

        Returns:
            float32 [rows, values].
        """


class Updates(Protocol):
    """The states that the rows of one forward update; see SessionsAttention."""

    def update(self, layer: RecurrentLayer, inputs: torch.Tensor) -> torch.Tensor:
        """Return what rows read of the states of a layer after their updates: float32 [rows, values].

        Args:
            inputs: float32 [rows, row_values], by which the rows update (see RowStates).
        """
