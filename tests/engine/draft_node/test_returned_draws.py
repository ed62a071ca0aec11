"""What a last stage may say that it has drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Segment, no_rows
from flowedge.core.sampling import Walk
from flowedge.engine.draft_node.returned_draws import last_draw, returned_walk, with_draws
from tests.engine.rig import segment

TOKENS, PARENTS = np.array([5, 6, 7, 8]), np.array([-1, 0, 0, 2])


def returned(drawn: list[int]) -> Segment:
    made: Segment = segment(number=3, first=4, parents=[CONTEXT, 4, 4, 6], positions=[4, 5, 5, 6])
    kept = np.ones((sum(token != NO_TOKEN for token in drawn), 2))
    return replace(made, drawn=np.array(drawn), payload=kept)


def test_a_path_is_followed_as_far_as_it_was_drawn() -> None:
    assert returned_walk(returned([7, -1, 8, 2]), TOKENS, PARENTS) == Walk((0, 2, 3), 2)
    assert returned_walk(returned([9, -1, -1, -1]), TOKENS, PARENTS) == Walk((0,), 9)


@pytest.mark.parametrize(
    "drawn",
    [[-1, -1, -1, -1], [-1, -1, 8, 2], [7, -1, -1, 2], [6, -1, 8, 2], [7, 3, -1, -1], [7, -1, 9, 2]],
    ids=["nothing", "no root", "a gap", "another child", "a wrong child", "another token"],
)
def test_anything_else_is_refused(drawn: list[int]) -> None:
    with pytest.raises(ProtocolError, match="segment 3 came back with draws that are no path from its root"):
        returned_walk(returned(drawn), TOKENS, PARENTS)


def test_a_segment_without_draws_is_refused_unless_it_is_empty() -> None:
    plain = replace(returned([7, -1, 8, 2]), drawn=None)
    with pytest.raises(ProtocolError, match="segment 3 came back without the tokens drawn after its rows"):
        with_draws(plain, 50)
    with pytest.raises(ProtocolError, match="segment 3 came back with token 50; there are 50"):
        with_draws(returned([7, -1, 8, 50]), 50)
    empty = with_draws(no_rows(replace(plain, payload=np.ones((4, 2)))), 50)
    assert empty.drawn is not None and len(empty.drawn) == 0


def test_the_prompt_ends_with_a_draw() -> None:
    prompt = segment(number=1, first=0, rows=2)
    assert last_draw(replace(prompt, drawn=np.array([-1, 4]))) == 4
    with pytest.raises(ProtocolError, match="segment 1 came back without the token after its last row"):
        last_draw(replace(prompt, drawn=np.array([-1, -1])))


def test_pruned_rows_take_their_hidden_states_with_them() -> None:
    segment = replace(returned([7, -1, 8, 2]), payload=np.array([[1.0], [2.0], [3.0]]))
    left = segment.take(np.array([1, 2, 3]))
    assert left.drawn is not None and left.drawn.tolist() == [-1, 8, 2]
    assert left.payload.ravel().tolist() == [2, 3]
    both = left.joined(segment.take(np.array([0])))
    assert both.drawn is not None and both.drawn.tolist() == [-1, 8, 2, 7]
    assert both.payload.ravel().tolist() == [2, 3, 1]
