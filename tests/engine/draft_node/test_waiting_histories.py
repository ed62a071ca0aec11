"""Random histories in which sessions wait: stages never see more than they have room for.

Every fifth history of tests/engine/histories.py has stages for one session, or two; a session beyond them
would end with a fault. Express messages are lost and late, so that the order on the links decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowedge.core.request import Opened
from flowedge.engine.draft_node.cache_budget import CacheBudget
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.session_admission import SessionAdmission
from tests.engine.histories import run_history

WAITING = (34, 259, 264, 294, 314, 364)  # chosen among the first


def test_sessions_wait_in_these_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    take = SessionAdmission.take_outputs

    def taken(self: SessionAdmission) -> Any:
        outputs = take(self)
        waits.extend(output.waited_s for output in outputs if isinstance(output, Opened))
        return outputs

    monkeypatch.setattr(SessionAdmission, "take_outputs", taken)
    for seed in WAITING:
        run_history(seed)
    assert len(waits) > 15 and sum(wait > 0 for wait in waits) > 15


def opened_before_the_end_of_the_other(patch: pytest.MonkeyPatch) -> None:
    close: Callable[..., None] = vars(DraftNode)["_close"]

    def close_late(self: DraftNode, session: DraftSession, *last: Any, **how: Any) -> None:
        self.admission.release(session.name, 0.0)
        self.admit()
        close(self, session, *last, **how)

    patch.setattr(DraftNode, "_close", close_late)


def room_never_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionAdmission, "release", lambda self, session, now: None)


def one_session_too_many(patch: pytest.MonkeyPatch) -> None:
    fits: Callable[..., bool] = CacheBudget.fits

    def fits_more(self: CacheBudget, claim: Any, limits: Any) -> bool:
        return fits(self, claim, type(limits)(sessions=limits.sessions + 1))

    patch.setattr(CacheBudget, "fits", fits_more)


@pytest.mark.parametrize(
    "bug", [opened_before_the_end_of_the_other, room_never_given_back, one_session_too_many]
)
def test_a_bug_in_admission_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in WAITING:
            run_history(seed)
