"""The steps of a walk through a draft tree, against the path of each row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowedge.models.recurrent.row_steps import UpdateSteps, steps_of_context, steps_of_drafts

INPUTS = 4


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], int]:
    """The parents of a draft tail, -1 for the context, and how many of its last rows are new."""
    parents = [draw(st.integers(-1, row - 1)) for row in range(draw(st.integers(1, 24)))]
    return parents, draw(st.integers(1, len(parents)))


def path_of(parents: list[int], row: int) -> list[int]:
    return [] if row < 0 else [*path_of(parents, parents[row]), row]


def states_after(steps: UpdateSteps) -> tuple[dict[int, list[int]], list[tuple[int, ...]]]:
    """The rows that each output's state has taken in, and what each step's convolution read."""
    states: dict[int, list[int]] = {0: []}
    outputs = {}
    for read, source, target, output in zip(
        steps.rows.tolist(),
        steps.sources.tolist(),
        steps.targets.tolist(),
        steps.outputs.tolist(),
        strict=True,
    ):
        states[target] = [*states[source], read[-1] - INPUTS + 1]
        if output >= 0:
            outputs[output] = states[target]
    return outputs, [tuple(read) for read in steps.rows.tolist()]


@given(tree=trees())
def test_each_new_row_has_the_state_of_its_path(tree: tuple[list[int], int]) -> None:
    parents, new = tree
    steps = steps_of_drafts(np.array(parents), new, INPUTS)
    known = len(parents) - new
    outputs, read = states_after(steps)
    assert outputs == {row: path_of(parents, known + row) for row in range(new)}
    before = list(range(INPUTS - 1))
    for each in read:
        path = path_of(parents, each[-1] - INPUTS + 1)
        assert list(each) == [*before, *(row + INPUTS - 1 for row in path)][-INPUTS:]


@given(tree=trees())
def test_only_rows_that_are_needed_are_walked_and_few_states_are_held(tree: tuple[list[int], int]) -> None:
    parents, new = tree
    steps = steps_of_drafts(np.array(parents), new, INPUTS)
    needed = {row for leaf in range(len(parents) - new, len(parents)) for row in path_of(parents, leaf)}
    assert steps.count == len(needed)
    assert 0 not in steps.targets, "the state that is held stays behind the committed rows"
    children = [sum(parent == row for parent in parents) for row in range(len(parents))]
    branches = max(sum(children[row] > 1 for row in path_of(parents, leaf)) for leaf in range(len(parents)))
    assert steps.places <= 1 + branches


def test_a_chain_is_computed_in_one_state() -> None:
    steps = steps_of_drafts(np.arange(10) - 1, 10, INPUTS)
    assert steps.places == 1
    assert steps.sources.tolist() == [0, *[1] * 9]


def test_the_context_is_taken_into_the_state_that_is_held() -> None:
    steps = steps_of_context(3, INPUTS)
    assert steps.rows.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert not steps.sources.any() and not steps.targets.any() and (steps.outputs == -1).all()
    assert steps_of_context(0, INPUTS).count == 0
