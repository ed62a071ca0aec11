"""The order in which the rows of a draft tree update a state, and where each state lies meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray


@dataclass(frozen=True, eq=False)
class UpdateSteps:
    """Updates of the states of a session, in order, the same in all layers.

    Attributes:
        rows: int64 [steps, inputs], which of the session's recent rows the convolution of a step reads, the
            row that updates last. Rows before the first one are those that the state has taken in.
        sources, targets: int64 [steps], the place of the state before and after the update: 0 is that which
            the session holds, others are memory of the forward.
        outputs: int64 [steps], the row of the forward that reads the new state; -1 where none does.
    """

    rows: IntArray
    sources: IntArray
    targets: IntArray
    outputs: IntArray

    @property
    def count(self) -> int:
        return self.sources.size

    @property
    def places(self) -> int:
        """The states that are in the memory of the forward at once."""
        return int(self.targets.max(initial=0))


def steps_of_context(rows: int, inputs: int) -> UpdateSteps:
    """Return the steps by which the first recent rows, a chain, are taken into the session's state."""
    zeros = np.zeros(rows, np.int64)
    last = np.arange(rows)[:, None] + inputs - 1
    return UpdateSteps(last - np.arange(inputs)[::-1], zeros, zeros, zeros - 1)


def steps_of_drafts(parents: IntArray, new: int, inputs: int) -> UpdateSteps:
    """Return the steps that compute the last `new` rows of a draft tail.

    The tree is walked in depth, through the ancestors of new rows alone. A row whose parent has no further
    child overwrites the parent's state, so that as many states are held as branches are open.

    Args:
        parents: int64 [tail], of each row the index of its parent in the tail; negative for the context.
        inputs: rows that a convolution reads (see UpdateSteps.rows).
    """
    tail = parents.size
    known, above = tail - new, parents.tolist()
    needed = [row >= known for row in range(tail)]
    children: list[list[int]] = [[] for _ in range(tail)]
    first: list[int] = []
    for row in range(tail - 1, -1, -1):
        if needed[row]:
            parent = above[row]
            (children[parent] if parent >= 0 else first).append(row)
            if parent >= 0:
                needed[parent] = True
    before = list(range(inputs - 1))
    steps: list[tuple[list[int], int, int, int]] = []
    # Rows to be visited, the next one last: the row, its parent's place, its own place, the inputs above it.
    waiting = [(row, 0, 1, before) for row in first]
    while waiting:
        row, source, target, path = waiting.pop()
        read = [*path, row + inputs - 1]
        steps.append((read, source, target, row - known if row >= known else -1))
        # The child that is visited last comes first.
        waiting += [
            (child, target, target + (index > 0), read[1:]) for index, child in enumerate(children[row])
        ]
    return _steps(steps, inputs)


def _steps(steps: list[tuple[list[int], int, int, int]], inputs: int) -> UpdateSteps:
    rows = np.array([step[0] for step in steps], np.int64).reshape(-1, inputs)
    sources, targets, outputs = (np.array([step[i] for step in steps], np.int64) for i in (1, 2, 3))
    return UpdateSteps(rows, sources, targets, outputs)
