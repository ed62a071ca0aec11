"""Which ended sessions are kept within a budget, and which are forgotten for others."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.engine.draft_node.retained_sessions import (
    PrefixSource,
    RetainedSession,
    RetainedSessions,
    common_tokens,
)


def kept(name: str, tokens: list[int], capacity: int = 10, draft_rows: int = 0) -> RetainedSession:
    known = PrefixSource(name, np.array(tokens, dtype=np.int64), draft_rows)
    return RetainedSession(known, capacity, in_drafter=draft_rows > 0)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [([], [1], 0), ([1], [1], 1), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([4], [5], 0)],
)
def test_common_tokens(one: list[int], other: list[int], common: int) -> None:
    texts = np.array(one, dtype=np.int64), np.array(other, dtype=np.int64)
    assert common_tokens(*texts) == common_tokens(*reversed(texts)) == common


def test_the_least_recently_used_go_first() -> None:
    sessions = RetainedSessions(30)
    for number, name in enumerate("abc"):
        assert sessions.add(kept(name, [number])) == []
    sessions.use("a")
    assert sessions.oldest(1) == ["b"]
    assert sessions.oldest(11) == ["b", "c"]
    assert sessions.oldest(1000) == ["b", "c", "a"]
    assert sessions.oldest(0) == []
    assert sessions.add(kept("d", [9], capacity=15)) == ["b", "c"]


def test_a_session_that_another_continues_is_forgotten() -> None:
    sessions = RetainedSessions(1000)
    sessions.add(kept("turn1", [1, 2, 3], draft_rows=2))
    assert sessions.add(kept("other", [1, 2, 4, 5])) == []
    assert sessions.add(kept("plain", [1, 2, 3, 7])) == [], "its drafter has fewer rows"
    assert sessions.add(kept("turn2", [1, 2, 3, 7, 8], draft_rows=4)) == ["turn1", "plain"]


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    sessions = RetainedSessions(30)
    assert sessions.fits(30)
    assert not sessions.fits(31)
    assert not RetainedSessions(0).fits(1)
