"""Notes are taken in a bounded memory, and what is missing is said."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import CONTEXT
from flowedge.core.request import Tokens
from flowedge.live.activity.notes import ActivityNotes, RowsPruned, SegmentLeft
from flowedge.live.activity.observed_tree import ObservedTree
from flowedge.live.activity.reader import MAX_TREE_NODES, WINDOW_S, ActivityReader


def test_notes_beyond_the_limit_are_left_out_and_that_is_said() -> None:
    notes = ActivityNotes(max_notes=3)
    for token in range(5):
        notes.put_out(Tokens("s", (token,), "", 0.0))
    taken, lost = notes.take()
    assert len(taken) == 3
    assert lost
    (message,) = ActivityReader("d0", ["v1"], 4, str).read(taken, 0.0, lost=lost)
    assert message.incomplete
    assert notes.take() == ([], False)


def test_a_session_that_is_met_in_the_middle_is_followed_from_its_next_token_on() -> None:
    tree = ObservedTree()
    rows = np.array([5, 6]), np.array([CONTEXT, 10])
    assert tree.send(SegmentLeft("s", 0.0, 3, 10, *rows)).nodes == []
    (root,) = tree.put_out([9]).nodes
    assert root.parent == -1
    tree.prune(RowsPruned("s", 0.0, 10, 1, np.array([10, 11])))
    (child,) = tree.send(SegmentLeft("s", 0.0, 4, 12, np.array([8]), np.array([11]))).nodes
    assert child.parent == root.number


def test_much_activity_is_told_whole_in_several_messages() -> None:
    notes, reader = ActivityNotes(), ActivityReader("d0", ["v1"], 4, str)
    for token in range(2 * MAX_TREE_NODES + 1):
        notes.put_out(Tokens("s", (token,), "", 0.0))
    messages = reader.read(notes.take()[0], 0.0)
    told = [sum(len(change.accepted.nodes) for change in message.trees) for message in messages]
    assert told == [MAX_TREE_NODES, MAX_TREE_NODES, 1]
    assert not any(message.incomplete for message in messages)


def test_speeds_are_those_of_the_last_seconds() -> None:
    notes, reader = ActivityNotes(), ActivityReader("d0", ["v1"], 4, str)
    for at in range(4):
        notes.put_out(Tokens("s", (1, 2), "", float(at) / 10))
    reader.read(notes.take()[0], 1.0)
    state = reader.state(1, 0, 1.0)
    assert (state.tokens_per_segment, state.tokens_per_s) == (2.0, 8 / WINDOW_S)
    assert reader.state(1, 0, 1.0 + WINDOW_S).tokens_per_s == 0.0
