"""The path that the last stage has drawn, through segments, prunes and forwards that lose rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Drawing, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draw import DrawnRows
from flowedge.engine.stage.drawn_path import DrawnPath
from flowedge.protocol.epochs import map_segment
from tests.engine.rig import prune, segment

DRAWING = Drawing(SamplingParams(temperature=0.5, seed=7), prompt_rows=4, features=True, max_new_tokens=9)


def draft(first: int, tokens: list[int], parents: list[int], **changes: object) -> Segment:
    positions = [0] * len(tokens)  # of which the path knows nothing
    made: Segment = segment(first=first, parents=parents, positions=positions, **changes)
    return replace(made, tokens=np.array(tokens))


def drawn(rows: list[int], tokens: list[int], payload_rows: int | None = None) -> DrawnRows:
    count = len(rows) if payload_rows is None else payload_rows
    return DrawnRows(np.array(rows, dtype=np.int64), np.array(tokens, dtype=np.int64), np.ones((count, 2)))


def after_prompt(token: int = 5) -> DrawnPath:
    """The path when the token after the prompt's four rows is drawn."""
    path = DrawnPath(DRAWING)
    path.take(segment(first=0, rows=4), np.arange(4), drawn([3], [token], 4))
    return path


def after_draft() -> DrawnPath:
    """The path when 7 and 9 are drawn after the rows 4 and 6; row 5 is off the path."""
    path = after_prompt(5)
    path.take(draft(4, [5, 6, 7], [CONTEXT, 4, 4]), np.arange(3), drawn([0, 2], [7, 9]))
    return path


def test_only_the_last_row_of_the_prompt_is_followed_by_a_draw() -> None:
    path = DrawnPath(DRAWING)
    assert path.draw(segment(first=0, rows=3)).first is None
    draw = path.draw(segment(number=1, first=3, rows=1))
    assert draw.first == 0 and draw.visitable.tolist() == [0]
    assert (draw.sampling, draw.features) == (DRAWING.sampling, True)
    back = path.take(segment(number=1, first=3, rows=1), np.arange(1), drawn([0], [9], 1))
    assert back.drawn is not None and back.drawn.tolist() == [9]
    assert path.draw(segment(number=2, first=4, rows=1)).first == 0, "a committed row beyond the prompt"


def test_the_walk_begins_at_the_child_with_the_drawn_token() -> None:
    path = after_prompt(5)
    draw = path.draw(draft(4, [5, 6, 7, 8], [CONTEXT, 4, 4, 6]))
    assert (draw.first, draw.visitable.tolist(), draw.visitable_parents) == (0, [0, 1, 2, 3], [-1, 0, 0, 2])
    assert after_prompt(6).draw(draft(4, [5, 6], [CONTEXT, 4])).first is None, "the root is another token"
    drawn_after = {0: 7, 2: 8, 3: 1}
    rows, tokens = draw.follow(drawn_after.__getitem__)
    assert (rows.tolist(), tokens.tolist()) == ([0, 2, 3], [7, 8, 1])


def test_it_goes_on_in_the_next_segment() -> None:
    path = after_prompt(5)
    back = path.take(draft(4, [5, 6, 7], [CONTEXT, 4, 4]), np.arange(3), drawn([0, 2], [7, 9]))
    assert back.drawn is not None and back.drawn.tolist() == [7, NO_TOKEN, 9]
    assert back.tokens is None and len(back.payload) == 2
    draw = path.draw(draft(7, [9, 9, 9], [5, 6, 8], number=1))
    assert draw.first == 1, "row 6 is the end of the path"
    assert draw.visitable.tolist() == [1, 2]


def test_a_prune_that_accepts_it_makes_it_context() -> None:
    path = after_draft()
    path.apply(prune(epoch=1, source_len=7, context=4, accepted=2, retained=[4, 6]))
    assert path.draw(draft(6, [8, 9], [CONTEXT, CONTEXT], number=1, epoch=1)).first == 1


def test_a_prune_may_accept_less_than_was_drawn() -> None:
    path = after_draft()
    path.apply(prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 6, 8]))
    draw = path.draw(draft(6, [3, 9], [5, 5], number=1, epoch=1))
    assert draw.first == 1, "row 6 is row 5 now"


def test_rows_that_are_given_up_may_come_again() -> None:
    path = after_draft()
    path.apply(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4]))
    assert path.draw(draft(5, [9, 7], [CONTEXT, CONTEXT], number=1, epoch=1)).first == 1


def test_a_prune_in_the_middle_of_the_forward() -> None:
    path, computing = after_prompt(5), draft(4, [5, 6, 7], [CONTEXT, 4, 4])
    path.draw(computing)
    change = prune(epoch=1, source_len=7, context=4, accepted=0, retained=[4, 5])
    path.apply(change)
    live, offsets = map_segment(computing, change)
    back = path.take(live, offsets, drawn([0, 2], [7, 9]))
    assert back.drawn is not None and back.drawn.tolist() == [7, NO_TOKEN]
    assert len(back.payload) == 1
    assert path.draw(draft(6, [9, 7], [4, 4], number=1, epoch=1)).first == 1, "a dropped row comes again"


@pytest.mark.parametrize(("eos", "max_new_tokens"), [({7}, 9), ({9, 5}, 2)])
def test_nothing_is_drawn_beyond_the_end(eos: set[int], max_new_tokens: int) -> None:
    path = DrawnPath(replace(DRAWING, max_new_tokens=max_new_tokens, eos=frozenset(eos - {5})))
    path.take(segment(first=0, rows=4), np.arange(4), drawn([3], [5], 4))
    rows = replace(draft(4, [5, 7, 6], [CONTEXT, 4, 5]), positions=np.array([4, 5, 6]))
    back = path.take(rows, np.arange(3), drawn([0, 1, 2], [7, 6, 8]))
    assert back.drawn is not None and back.drawn.tolist() == [7, NO_TOKEN, NO_TOKEN]
    assert len(back.payload) == 1
    assert path.draw(draft(7, [7], [4], number=1)).first is None


def test_other_rows_cannot_be_accepted() -> None:
    path = after_draft()
    with pytest.raises(ProtocolError, match="prune 1 accepts rows that the target has not drawn"):
        path.apply(prune(epoch=1, source_len=7, context=4, accepted=2, retained=[4, 5]))


def test_draft_rows_have_to_have_tokens() -> None:
    with pytest.raises(ProtocolError, match="segment 1 has draft rows without their tokens"):
        after_prompt().draw(replace(draft(4, [5], [CONTEXT], number=1), tokens=None))
