"""Random histories meet every way to begin with rows of others, and notice bugs in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from flowedge.core.errors import FlowEdgeError
from flowedge.core.messages import Close
from flowedge.engine.draft_node import target_sessions
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.target_sessions import TargetSessions
from flowedge.protocol.pipeline_ledger import PipelineLedger
from tests.engine.deliberate_bugs import Bug, Patch, check_noticed, replaced, wrapped
from tests.engine.histories import run_history

MET = (30, 120, 264, 311, 314)  # histories that meet every case about three times


def test_these_histories_meet_every_case(monkeypatch: Patch) -> None:
    met: Counter[str] = Counter()

    def begun(original, self: TargetSessions, session: DraftSession, sessions) -> None:
        original(self, session, sessions)
        met["waits"] += self.waits(session.name)
        if session.prefix is not None:
            met["kept" if session.prefix.session in self.names else "open"] += 1
            met["drafter"] += session.draft_prefix is not None
            met["tokens"] += session.draft_prefix is None and session.strategy.needs_drafter

    def again(original, self: TargetSessions, session, error: FlowEdgeError, *, in_band: bool) -> bool:
        begun = bool(original(self, session, error, in_band=in_band))
        met[error.code] += begun
        return begun

    wrapped(TargetSessions, "begin", begun)(monkeypatch)
    wrapped(TargetSessions, "begin_again", again)(monkeypatch)
    for seed in MET:
        run_history(seed)
    assert min(met[case] for case in ("waits", "open", "kept", "drafter", "tokens", "prefix_lost")) > 0, met


# ------------------------------------------------------------------------------------------ deliberate bugs


def more_rows_copied(session: DraftSession, common: int, draft_rows: int) -> tuple[int, int]:
    """A row behind the common ones is copied as well."""
    rows, drafted = exact_usable(session, common, draft_rows)
    return rows + 2, drafted


def one_true_row_more(session: DraftSession, common: int, draft_rows: int) -> tuple[int, int]:
    """The last common row is taken for a true row, although another token follows it."""
    rows, drafted = exact_usable(session, common, draft_rows)
    return (rows, drafted) if session.needs_features or not drafted else (rows, min(common, draft_rows))


def begun_again_express_too(original, self: TargetSessions, session, error, *, in_band: bool) -> bool:
    """What is begun again was closed express as well, which may come after the second Open."""
    begun = original(self, session, error, in_band=in_band)
    if begun:
        self._outbox.express.append(Close(session.name))
    return bool(begun)


def rows_in_flight_too(ledger: PipelineLedger):
    """Rows that were sent are taken for computed."""
    return np.array(ledger.sequence.context_tokens, dtype=np.int64)


def stages_never_told(original, self: TargetSessions, names) -> None:
    for name in names:
        self._kept.pop(name)


exact_usable = target_sessions.usable_rows

# By name: the number of a history that notices the bug soon, and the bug.
BUGS: dict[str, tuple[int, Bug]] = {
    "a row is copied that is not common": (291, replaced(target_sessions, "usable_rows", more_rows_copied)),
    "a true row is copied that is not common": (
        291,
        replaced(target_sessions, "usable_rows", one_true_row_more),
    ),
    "a session begun again is closed express": (
        64,
        wrapped(TargetSessions, "begin_again", begun_again_express_too),
    ),
    "rows in flight are copied": (
        126,
        replaced(PipelineLedger, "cached_tokens", property(rows_in_flight_too)),
    ),
    "no stage is told to forget": (219, wrapped(TargetSessions, "forget", stages_never_told)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_noticed(bug: str, monkeypatch: Patch) -> None:
    check_noticed(bug, *BUGS[bug], monkeypatch)
