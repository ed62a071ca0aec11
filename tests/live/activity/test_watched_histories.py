"""Random histories stay exact while everything is noted, and the notes tell how each token came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import pytest

from flowedge.core.messages import Segment
from flowedge.core.request import Tokens
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.commands import PutOut, SendInBand
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.jobs import GrowDraft
from flowedge.live.activity.notes import ActivityNotes, SegmentLeft
from flowedge.live.activity.reader import ActivityReader
from flowedge.strategies.events import TARGET
from tests.engine import histories
from tests.engine.histories import run_history

HISTORIES = range(40)
TESTED = HISTORIES[1::3]


class NotedDraftNode(DraftNode):
    """A draft node from which notes are taken where a live driver takes them."""

    made: ClassVar[list[NotedDraftNode]] = []

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.notes = ActivityNotes(1 << 20)
        self.made.append(self)

    def poll(self, **named):
        commands = super().poll(**named)
        for command in commands:
            if isinstance(command, PutOut) and isinstance(command.output, Tokens):
                self.notes.put_out(command.output)
        for command in commands:
            if isinstance(command, SendInBand) and command.route == TARGET:
                self.notes.leaves(command.message, 0.0)
        return commands

    def receive(self, message, route=TARGET, sender="the last stage"):
        if isinstance(message, Segment) and route == TARGET:
            self.notes.came_back(message, 0.0)
        super().receive(message, route, sender)

    def finish(self, job, result):
        if isinstance(job, GrowDraft) and isinstance(result, DraftLayer):
            self.notes.grown(job, result, 0.0)
        super().finish(job, result)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(TESTED, id="third"),
        pytest.param(sorted({*HISTORIES} - {*TESTED}), id="others", marks=pytest.mark.proof),
    ],
)
def test_the_nodes_that_are_told_of_lead_to_the_tokens_put_out(
    seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "DraftNode", NotedDraftNode)
    told = 0
    for seed in seeds:
        NotedDraftNode.made.clear()
        assert run_history(seed) >= 0
        (node,) = NotedDraftNode.made
        notes, lost = node.notes.take()
        assert not lost
        told += _check(seed, notes, ActivityReader("d0", ["v"] * node.spec.num_stages, 4, str))
    assert told > 2 * len(seeds)


def _check(seed: int, notes: list, reader: ActivityReader) -> int:
    """Read notes one by one and hold what is told against itself; return how many drafts were accepted."""
    known: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
    sent: dict[str, set[int]] = defaultdict(set)
    root: dict[str, int] = {}
    accepted_drafts = 0
    for note in notes:
        (message,) = reader.read([note], 0.0)
        changes = message.trees
        if isinstance(note, SegmentLeft) and note.tokens is not None:
            rows = [len(change.sent.nodes) for change in changes if change.HasField("sent")]
            assert sum(rows) == len(note.tokens), (seed, note, "a row without a node")
        for change in changes:
            kind, of = change.WhichOneof("change"), known[change.session]
            if kind == "finished":
                continue
            nodes = getattr(change, kind)
            for number, parent, text in zip(nodes.nodes, nodes.parents, nodes.texts, strict=True):
                assert of.setdefault(number, (parent, text)) == (parent, text), (seed, "a number used twice")
                assert parent == -1 or parent in of, (seed, "a node below an unknown node")
            if kind == "sent":
                sent[change.session].update(nodes.nodes)
            if kind == "accepted":
                path = list(nodes.nodes)
                assert list(nodes.parents) == [root.get(change.session, -1), *path[:-1]], seed
                root[change.session] = path[-1]
                assert set(path[:-1]) <= sent[change.session], (seed, "an accepted draft was never sent")
                accepted_drafts += len(path) - 1
    return accepted_drafts
