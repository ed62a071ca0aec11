"""A last stage that draws: what it takes, and what it hands on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.messages import CONTEXT, Close, Drawing, Open, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.stage.stage_spec import StageSpec
from tests.engine.exact_model import ExactStage
from tests.engine.rig import VOCAB, Rig, prune, segment

DRAWING = Drawing(SamplingParams(), prompt_rows=4, features=True, max_new_tokens=20)


def opened(*, features: bool = True, **spec: Any) -> Rig:
    """A last stage behind another, with the prompt's rows of session `s`."""
    rig = Rig(is_first=False, draws=True, **spec)
    rig.executor = ExactStage(0, VOCAB)
    rig.receive(Open("s", 20, replace(DRAWING, features=features)))
    rig.receive(states(segment(first=0, rows=4)))
    return rig


def states(given: Segment) -> Segment:
    return replace(given, payload=np.arange(given.num_rows, dtype=np.uint64)[:, None] + 7)


def draft(rig: Rig, *others: int) -> Segment:
    """Rows behind the prompt: the root that was drawn, and children of it."""
    drawn = rig.sent[-1].drawn
    tokens = np.array([int(drawn[-1]), *others])
    parents, positions = [CONTEXT, *[4] * len(others)], [4, *[5] * len(others)]
    return replace(states(segment(number=1, first=4, parents=parents, positions=positions)), tokens=tokens)


def test_the_prompt_comes_back_with_its_last_draw() -> None:
    rig = opened()
    (back,) = [message for message in rig.sent if isinstance(message, Segment)]
    assert back.payload.shape == (4, 1)
    assert back.drawn is not None and back.drawn.tolist()[:3] == [NO_TOKEN] * 3
    assert 0 <= back.drawn[3] < VOCAB


def test_rows_off_the_path_come_back_as_indices() -> None:
    rig = opened()
    (back,) = rig.receive(draft(rig, *range(5)))
    assert isinstance(back, Segment) and back.num_rows == 6
    assert back.drawn is not None and back.tokens is None
    on_path = 1 + int(back.drawn[0] in range(5))
    assert back.payload.shape == (on_path, 1)


def test_nothing_but_ids_comes_back_if_nothing_else_is_wanted() -> None:
    rig = opened(features=False)
    (back,) = rig.receive(draft(rig, *range(5)))
    assert isinstance(back, Segment) and back.payload.size == 0
    rig.receive(prune(epoch=1, source_len=10, context=4, accepted=0, retained=[]))
    (empty,) = rig.receive(
        replace(states(segment(number=2, first=4, epoch=1, parents=[], positions=[])), tokens=None)
    )
    assert isinstance(empty, Segment) and empty.payload.shape == (0, 0)


def test_a_segment_of_which_every_row_died_draws_nothing() -> None:
    rig = opened()
    held = draft(rig, 1)
    rig.hold(held)
    rig.receive(prune(epoch=1, source_len=6, context=4, accepted=0, retained=[]), express=True, compute=False)
    back = [message for message in rig.release() if isinstance(message, Segment)]
    assert [(message.num_rows, message.payload.shape) for message in back] == [(0, (0, 1))]
    again = replace(states(segment(number=2, first=4, epoch=0, parents=[CONTEXT], positions=[4])))
    rig.receive(prune(epoch=1, source_len=6, context=4, accepted=0, retained=[]))
    assert held.tokens is not None
    (found,) = [
        message
        for message in rig.receive(replace(again, epoch=1, tokens=held.tokens[:1]))
        if isinstance(message, Segment)
    ]
    assert found.drawn is not None and found.drawn[0] != NO_TOKEN, "the same token may come again"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokens": None}, "lacks the tokens of its draft rows"),
        ({"drawn": np.array([3, 4])}, "carries draws, which only the last stage adds"),
        ({"tokens": np.array([3, VOCAB])}, f"a token id outside 0..{VOCAB - 1}"),
    ],
)
def test_tokens_have_to_be_right(change: dict[str, Any], problem: str) -> None:
    rig = opened()
    rig.receive(replace(draft(rig, 1), **change))
    (fault,) = rig.faults()
    assert problem in fault.reason
    rig.receive(Close("s"))
    rig.check_empty()


def test_a_session_that_does_not_draw_has_no_tokens() -> None:
    rig = Rig(is_first=False, draws=True)
    rig.receive(Open("s", 20))
    (back,) = rig.receive(states(segment(first=0, rows=4)))
    assert isinstance(back, Segment) and back.drawn is None and back.payload.shape == (4, 1)
    given = states(segment(number=1, first=4, parents=[CONTEXT], positions=[4]))
    rig.receive(replace(given, tokens=np.array([3])))
    (fault,) = rig.faults()
    assert "carries tokens that no stage needs" in fault.reason


def test_a_first_stage_gives_draft_rows_their_tokens() -> None:
    rig = Rig(is_first=True)
    assert rig.stage.spec == StageSpec(is_first=True, width=1, vocab_size=VOCAB, dtype="uint64")
    rig.receive(Open("s", 20, DRAWING))
    (prompt,) = rig.receive(segment(first=0, rows=4))
    given = segment(number=1, first=4, parents=[CONTEXT, 4], positions=[4, 5])
    (tree,) = rig.receive(given)
    assert isinstance(prompt, Segment) and prompt.tokens is None
    assert isinstance(tree, Segment) and tree.tokens is not None
    assert tree.tokens.tolist() == given.payload.tolist()
