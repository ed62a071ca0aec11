"""Whose prompt goes on next, and by how many rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from flowedge.core.messages import Segment, StageTime
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.prefill_order import PrefillOrder
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.protocol.pipeline_ledger import PipelineLedger
from tests.engine.rig import segment


@dataclass
class Prompt:
    """A session as far as its prompt goes."""

    name: str
    tokens: int
    prefilled: bool = False
    made: Any = field(init=False)

    def __post_init__(self) -> None:
        self.made = PipelineLedger(self.name, tuple(range(self.tokens)))

    def ledger(self, route: int) -> PipelineLedger:
        return self.made


class Turns:
    """PrefillOrder with chunks of at most 64 rows, and the chunks that it has sent."""

    def __init__(self) -> None:
        self.outbox = DraftNodeOutbox()
        self.turns = PrefillOrder(64, 3, self.outbox)
        self.prompts: dict[str, Prompt] = {}

    def join(self, name: str, tokens: int, *, prefilled: bool = False) -> list[tuple[str, int]]:
        self.prompts[name] = Prompt(name, 0 if prefilled else tokens, prefilled)
        self.turns.join(cast(DraftSession, self.prompts[name]))
        return self.sent()

    def taken_up(self, name: str) -> list[tuple[str, int]]:
        self.prompts[name].made.grant()
        self.turns.taken_up(name)
        return self.sent()

    def leave(self, name: str) -> list[tuple[str, int]]:
        self.turns.leave(name)
        return self.sent()

    def measured(self, seconds: dict[int, float]) -> None:
        for _ in range(50):
            for rows, taken in seconds.items():
                times = (StageTime(rows, taken / 2), StageTime(rows, taken))
                self.turns.observe(segment(parents=[-1], positions=[0], stage_times=times))

    def sent(self) -> list[tuple[str, int]]:
        found = []
        while (message := self.outbox.in_band.pop()) is not None:
            assert isinstance(message, Segment)
            found.append((message.session, message.num_rows))
        return found


def test_a_prompt_alone_is_sent_in_whole_chunks():
    turns = Turns()
    assert turns.join("a", 150) == [("a", 64)]
    assert turns.taken_up("a") == [("a", 64)]
    assert turns.taken_up("a") == [("a", 22)]
    assert turns.taken_up("a") == []


def test_prompts_take_turns_and_wait_together_for_one_chunk_at_most():
    turns = Turns()
    assert turns.join("a", 150) == [("a", 64)]
    assert turns.join("b", 100) == []
    assert turns.taken_up("a") == [("b", 64)]
    assert turns.taken_up("b") == [("a", 64)]
    assert turns.taken_up("a") == [("b", 36), ("a", 22)], "what is short goes together"


def test_short_prompts_wait_together():
    turns = Turns()
    assert turns.join("a", 20) == [("a", 20)]
    assert turns.join("b", 20) == [("b", 20)]
    assert turns.join("c", 30) == [("c", 24)]
    assert turns.join("d", 30) == []
    assert turns.taken_up("a") == [("d", 20)]


def test_the_turn_of_a_session_that_ends_goes_to_the_next():
    turns = Turns()
    assert turns.join("a", 150) == [("a", 64)]
    assert turns.join("b", 100) == []
    assert turns.leave("a") == [("b", 64)]
    assert turns.leave("x") == []


def test_chunks_are_short_while_sessions_decode_where_rows_are_dear():
    turns = Turns()
    turns.measured({1: 0.01, 2: 0.02, 8: 0.08, 64: 0.64})
    assert turns.join("a", 150) == [("a", 64)], "nobody is kept waiting"
    turns.join("decodes", 9, prefilled=True)
    assert turns.taken_up("a") == [("a", 16)]
    turns.leave("decodes")
    assert turns.taken_up("a") == [("a", 64)]


def test_chunks_are_whole_while_sessions_decode_where_rows_are_free():
    turns = Turns()
    turns.measured({1: 0.01, 64: 0.011, 128: 0.012})
    turns.join("decodes", 9, prefilled=True)
    assert turns.join("a", 150) == [("a", 64)]


def test_a_chunk_makes_no_forward_much_longer():
    turns = Turns()
    seconds = {rows: 0.01 + 0.001 * max(rows - 16, 0) for rows in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)}
    turns.measured(seconds)
    turns.join("decodes", 9, prefilled=True)
    ((_, rows),) = turns.join("a", 150)
    usual, chunk = np.interp([1, 1 + rows], list(seconds), list(seconds.values()))
    assert 16 < rows < 64
    assert chunk <= 2.1 * usual


def test_no_more_rows_are_on_their_way_than_the_stages_need():
    """A stage behind the first one is slow: the first takes up each chunk at once, and none comes back."""
    turns = Turns()
    sent = turns.join("a", 10_000)
    while more := turns.taken_up("a"):
        sent += more
    assert sum(rows for _, rows in sent) == 4 * (3 + 1) * 64
    turns.turns.observe(segment("a", rows=64))
    assert turns.sent() == [("a", 64)]
    assert turns.leave("a") == []
    assert turns.join("b", 64) == [("b", 64)]
