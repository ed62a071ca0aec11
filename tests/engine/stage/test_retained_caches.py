"""A stage keeps caches of ended sessions, copies their rows, and forgets them when it is told."""

from __future__ import annotations

import pytest

from flowedge.core.messages import CONTEXT, Close, Forget, Open, Prefix
from tests.engine.rig import Rig, prune, segment
from tests.support.seams import held_rows


def kept(rows: int = 6, **limits: int) -> Rig:
    """A rig that keeps rows of session `s`: 4 of the prompt, the root, and a draft row behind another."""
    rig = Rig(**limits)
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=4))
    rig.receive(segment(number=1, first=4, parents=[CONTEXT, 4, 4, 6], positions=[4, 5, 5, 6]))
    rig.receive(prune(epoch=1, source_len=8, context=4, accepted=3, retained=[4, 6, 7]))
    assert rig.receive(Close("s", kept=rows))[-1].kept == rows
    return rig


def copy_of(rig: Rig, rows: int) -> list[int]:
    """Open a session that begins with rows of `s`; return these rows as they are cached."""
    assert rig.receive(Open("new", 30, prefix=Prefix("s", rows)))
    return rig.executor.caches["new"][:rows]


@pytest.mark.parametrize("rows", [1, 4, 5, 6, 7])
def test_rows_are_copied_from_where_prunes_left_them(rows: int) -> None:
    rig = kept(7)
    held = rig.executor.caches["s"]
    assert copy_of(rig, rows) == [held[slot] for slot in (0, 1, 2, 3, 4, 6, 7)][:rows]
    assert rig.stage.load().retained == 1


def test_rows_of_an_open_session_are_copied() -> None:
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=4))
    assert copy_of(rig, 3) == rig.executor.caches["s"][:3]
    rig.receive(Close("s"))
    assert rig.stage.load().retained == 0
    rig.receive(segment("new", first=3, rows=2))
    assert not rig.faults("new")
    rig.receive(Close("new"))
    rig.check_empty()


def test_a_stage_forgets_what_it_kept() -> None:
    rig = kept()
    assert rig.receive(Forget("s")) == [Forget("s")]
    rig.check_empty()
    rig.receive(Open("new", 30, prefix=Prefix("s", 3)))
    (fault,) = rig.faults("new")
    assert fault.code == "prefix_lost"
    assert "s" in fault.reason
    rig.receive(Close("new"))
    rig.receive(Open("new", 30))
    rig.receive(segment("new", first=0, rows=2))
    assert len(rig.faults("new")) == 1, "it is opened again from its start"
    rig.receive(Close("new"))
    rig.check_empty()


@pytest.mark.parametrize(("rows", "capacity"), [(7, 30), (0, 30), (6, 6)])
def test_a_prefix_that_does_not_fit_is_refused(rows: int, capacity: int) -> None:
    rig = kept()
    rig.receive(Open("new", capacity, prefix=Prefix("s", rows)))
    assert rig.faults("new")[0].code == "protocol"
    rig.receive(Close("new"))
    rig.receive(Forget("s"))
    rig.check_empty()


def test_more_rows_than_are_context_are_not_kept() -> None:
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=4))
    assert rig.receive(Close("s", kept=5))[-1].kept == 0
    rig.check_empty()


def test_kept_caches_take_room_until_they_are_forgotten() -> None:
    rig = kept(max_total_capacity=40)
    rig.receive(Open("new", 30))
    assert rig.faults("new")[0].code == "capacity"
    rig.receive(Close("new"))
    rig.receive(Forget("s"))
    rig.receive(Open("new", 30))
    assert len(rig.faults("new")) == 1
    rig.receive(Close("new"))
    rig.check_empty()


def test_a_stage_keeps_as_many_caches_as_it_opens_sessions() -> None:
    rig = kept(max_sessions=1)
    rig.receive(Open("t", 20))
    rig.receive(segment("t", first=0, rows=4))
    assert rig.receive(Close("t", kept=4))[-1].kept == 0
    rig.receive(Forget("s"))
    rig.check_empty()


def test_what_was_computed_for_an_ended_session_is_not_taken_for_the_next_of_its_name() -> None:
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.hold(segment(first=0, rows=4))
    rig.receive(Close("s"), compute=False)
    rig.receive(Open("s", 20), compute=False)
    assert rig.release() == []
    rig.receive(Close("s"))
    rig.check_empty()


def with_pages(**limits: int) -> Rig:
    """A rig of a stage that shares pages, with an open session `s` of 150 rows."""
    rig = Rig(on_demand=True, page_saving=60, sharing=9, **limits)
    rig.receive(Open("s", 300))
    rig.receive(segment(first=0, rows=150))
    return rig


def test_shared_pages_count_once_until_no_session_has_them() -> None:
    rig = with_pages(max_total_capacity=3 * 192)
    rig.receive(Open("t", 300, prefix=Prefix("s", 140, 128)))
    rig.receive(segment("t", first=140, rows=10))
    assert held_rows(rig.stage) == 2 * 192 - 2 * 60
    rig.receive(Open("u", 300, prefix=Prefix("t", 140, 64)))
    assert held_rows(rig.stage) == 3 * 192 - 3 * 60
    rig.receive(Open("v", 300, prefix=Prefix("t", 140, 64)))
    assert not rig.faults("v"), "it has as many rows more as it does not share"
    assert held_rows(rig.stage) == 4 * 192 - 4 * 60
    rig.receive(Close("s", kept=150))
    rig.receive(Close("t"))
    assert held_rows(rig.stage) == 3 * 192 - 2 * 60
    rig.receive(Forget("s"))
    assert held_rows(rig.stage) == 2 * 192 - 60
    for name in "uv":
        rig.receive(Close(name))
    assert held_rows(rig.stage) == 0
    rig.check_empty()


@pytest.mark.parametrize(("rows", "shared"), [(140, 192), (150, 100), (10, 64)])
def test_what_is_no_whole_pages_of_rows_is_not_shared(rows: int, shared: int) -> None:
    rig = with_pages()
    rig.receive(Open("t", 300, prefix=Prefix("s", rows, shared)))
    assert rig.faults("t")[0].code == "protocol"
    for name in "ts":
        rig.receive(Close(name))
    rig.check_empty()


@pytest.mark.parametrize("shared", [128, 192])
def test_rows_that_are_to_be_moved_are_not_shared(shared: int) -> None:
    rig = with_pages()
    rig.receive(segment(number=1, first=150, rows=40))
    rig.receive(segment(number=2, first=190, parents=[CONTEXT, CONTEXT, 191], positions=[190, 190, 191]))
    rig.receive(prune(epoch=1, source_len=193, context=190, accepted=2, retained=[191, 192]))
    rig.receive(Open("t", 300, prefix=Prefix("s", 192, shared)))
    assert [fault.code for fault in rig.faults("t")] == ([] if shared == 128 else ["protocol"])
    for name in "ts":
        rig.receive(Close(name))
    rig.check_empty()
