"""Opening and ending of sessions on the target's route, with rows of other sessions where there are some.

A session whose prompt begins with tokens that another session has computed is opened with their rows: with
the pages of memory that they lie in where stages share pages, otherwise with a copy. The other session may be
open, or have ended and be retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowedge.core.arrays import IntArray
from flowedge.core.errors import CapacityError, FlowEdgeError, PrefixLostError
from flowedge.core.messages import Close, Forget, Prefix
from flowedge.engine.draft_node.cache_budget import SharedPrefix
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.prefill_order import PrefillOrder
from flowedge.engine.draft_node.retained_sessions import (
    PrefixSource,
    RetainedSession,
    RetainedSessions,
    common_tokens,
)
from flowedge.engine.draft_node.session_admission import SessionAdmission
from flowedge.engine.jobs import DraftBatch, DraftJob, DropCache, KeepDraft, OpenDraft
from flowedge.engine.pages import PAGE_ROWS
from flowedge.protocol.outbox import DraftNodeOutbox
from flowedge.strategies.commands import AcceptPath
from flowedge.strategies.events import TARGET


class _Found(NamedTuple):
    """Rows of another session that a session can begin with.

    Attributes:
        draft_rows: true rows of its drafter; given: rows that have never been draft rows.
    """

    session: str
    rows: int
    draft_rows: int
    given: int

    @property
    def pages(self) -> SharedPrefix:
        """The whole pages of these rows, in which nothing moves any more."""
        return SharedPrefix(self.session, min(self.rows, self.given) // PAGE_ROWS)


class TargetSessions:
    """What the draft node has opened on the target's route, which sessions wait, and which are retained.

    A session waits to be opened while another session computes rows that it can begin with, if these are more
    rows than the pipeline holds at once. With fewer, its own rows would be through as soon.
    """

    def __init__(
        self,
        spec: DraftNodeSpec,
        outbox: DraftNodeOutbox,
        jobs: deque[DraftJob],
        prefill: PrefillOrder,
        admission: SessionAdmission,
    ) -> None:
        """outbox: of the target's route; jobs: those that go before all others of the draft node."""
        self._admission = admission
        self._spec = spec
        self._outbox = outbox
        self._jobs = jobs
        self._prefill = prefill
        self._retained = RetainedSessions(spec.kept_rows)
        self._waiting: dict[str, DraftSession] = {}
        self._begun_again: dict[str, bool] = {}  # whether the end of their first beginning has come around

    @property
    def num_retained(self) -> int:
        """Ended sessions whose rows are retained."""
        return len(self._retained)

    @property
    def retained_rows(self) -> int:
        """The cache rows of all retained sessions together."""
        return self._retained.rows

    @property
    def names(self) -> list[str]:
        """The retained sessions, the least recently used first."""
        return self._retained.names

    def waits(self, name: str) -> bool:
        """Return whether a session is not opened yet, because it waits for rows of another."""
        return name in self._waiting

    def begin(self, session: DraftSession, sessions: Iterable[DraftSession]) -> None:
        """Open a session, or have it wait.

        sessions: all that have not ended, this one among them.
        """
        self._waiting.pop(session.name, None)
        self._forget_retained(session.name)
        if self._reuses(session):
            found, coming = self._best(session, sessions)
            if coming is not None:
                self._waiting[session.name] = session
                return
            if found is not None and found.rows >= self._spec.least_prefix:
                shared = self._admission.share(session.name, found.pages)
                session.begin(Prefix(found.session, found.rows, shared), found.draft_rows)
                self._retained.use(found.session)
                self._open(session)
                return
        self._admission.forget(session.name)
        self._open(session)

    def find_prefix(self, session: DraftSession, sessions: Iterable[DraftSession]) -> SharedPrefix | None:
        """Return the pages that a session is expected to share when it begins; None if there are none.

        sessions: as for `begin`.
        """
        if not self._reuses(session) or not self._admission.may_share(session.name, ""):
            return None
        found, coming = self._best(session, sessions)
        expected = coming or found
        return expected.pages if expected is not None and expected.pages.pages else None

    def _reuses(self, session: DraftSession) -> bool:
        request = session.request
        return bool(self._spec.kept_rows) and request.reuses_prefix and not request.rows_only

    def begin_waiting(self, sessions: Iterable[DraftSession]) -> None:
        """Open the waiting sessions that need not wait any more; `sessions` are all that have not ended."""
        for session in list(self._waiting.values()):
            self.begin(session, sessions)

    def begin_again(self, session: DraftSession, error: FlowEdgeError, *, in_band: bool) -> bool:
        """After an error, open a session anew without a prefix, if its prefix or its size was the cause.

        A stage reports a PrefixLostError if it does not hold the rows of the prefix, and a CapacityError if
        retained sessions take the memory of this session. Then no row of the session has come back, and
        nothing is lost. A session is opened anew only once.

        Each stage may report such an error of the first beginning, until the end of that has come around, and
        may report it by another way than in-band as well. These reports are ignored.

        Args:
            in_band: whether the error has come in-band, so that no rows of the session follow it.

        Returns:
            Whether the session goes on.
        """
        name, prefix = session.name, session.prefix
        rows = 0 if prefix is None else prefix.rows
        lost, full = isinstance(error, PrefixLostError), isinstance(error, CapacityError)
        if (lost or full) and name in self._begun_again and not (in_band and self._begun_again[name]):
            return True
        if name in self._begun_again or len(cached_tokens(session)) > rows:
            return False
        if not (lost and prefix is not None) and not (full and len(self._retained)):
            return False
        if not in_band:
            return True
        self.forget([prefix.session] if lost and prefix is not None else self._retained.names)
        self._begun_again[name] = False
        # In-band alone: an express Close could be there after the second Open.
        self._outbox.in_band.drop_segments(name)
        self._outbox.in_band.put(Close(name))
        if session.strategy.needs_drafter:
            self._jobs.append(DropCache(name))
        self._prefill.leave(name)
        session.begin(None)
        self._admission.forget(name)
        self._open(session)
        return True

    def end(self, session: DraftSession, last: Sequence[AcceptPath], held_rows: int, *, keep: bool) -> None:
        """End a session, which no list of sessions has any more.

        Args:
            last: the rows that become context at the end, if any; keep: whether its rows may be retained.
            held_rows: cache rows by which its memory is counted while it is retained.
        """
        name, waited = session.name, self._waiting.pop(session.name, None) is not None
        self._prefill.leave(name)
        self._begun_again.pop(name, None)
        request = session.request
        answer = session.answer.ended
        keep = keep and session.prefilled and request.reuses_prefix and self._retained.fits(held_rows)
        extension = None
        if keep:
            extension = session.last_extension() if session.keeps_drafter else None
            if session.ledger(TARGET).sequence.has_draft_rows:
                # Rows behind the answer are in no later prompt, and no state can be taken back over them.
                accepted = last[0].accepted[: session.unaccepted_rows] if last else ()
                self._outbox.prune(session.prune(AcceptPath(accepted, None, ends_round=False)))
            self._outbox.keep(name, len(cached_tokens(session)))
        else:
            self._outbox.close(name)
            self._admission.forget(name)
        in_drafter = keep and session.draft_rows > 0
        if (session.strategy.needs_drafter or request.rules is not None) and not waited:
            self._jobs += [] if extension is None else [DraftBatch([extension])]
            self._jobs.append(KeepDraft(name, answer) if in_drafter else DropCache(name, answer))
        if keep:
            known = PrefixSource(name, cached_tokens(session), session.draft_rows, len(request.given))
            self.forget(self._retained.add(RetainedSession(known, held_rows, in_drafter)))

    def forget_oldest(self, rows: int) -> int:
        """Forget the least recently used sessions for `rows` cache rows, or all; return their cache rows."""
        before = self.retained_rows
        self.forget(self._retained.oldest(rows))
        return before - self.retained_rows

    def forget(self, names: Iterable[str]) -> None:
        """Keep the rows of ended sessions no more; other names are ignored."""
        for name in names:
            self._forget_retained(name)

    def _forget_retained(self, name: str) -> None:
        retained = self._retained.pop(name)
        if retained is not None:
            self._admission.forget(name)
            self._outbox.put(Forget(name))
            if retained.in_drafter:
                self._jobs.append(DropCache(name))

    def take_close(self, close: Close) -> None:
        """Take in the Close of a session that has come back, by which all stages may not keep its rows."""
        if close.session in self._begun_again:
            self._begun_again[close.session] = True
        if not close.kept:
            self.forget([close.session])

    def _open(self, session: DraftSession) -> None:
        request = session.request
        if session.strategy.needs_drafter:
            self._jobs.append(
                OpenDraft(
                    session.name,
                    session.capacity,
                    request.prompt[0],
                    request.draft_noise,
                    session.draft_prefix,
                    request.tenant,
                )
            )
        self._outbox.put(session.opening(TARGET))
        self._prefill.join(session)

    def _best(
        self, session: DraftSession, sessions: Iterable[DraftSession]
    ) -> tuple[_Found | None, _Found | None]:
        """Return the most rows that a session can begin with now, and those that it is to wait for."""
        prompt = session.given
        best, coming = None, None
        whole = self._spec.whole_prefixes
        for known in [*self._retained, *(() if whole else self._open_rows(session, sessions))]:
            common = common_tokens(prompt, known.tokens)
            rows, draft_rows = usable_rows(session, common, known.draft_rows)
            if whole and rows < len(known.tokens) - 1:
                continue
            if rows > (0 if best is None else best.rows):
                best = _Found(known.session, rows, draft_rows, known.given)
        for other in sessions:
            if not (whole or other.prefilled) and self._may_copy(other, session):
                shared = common_tokens(prompt, other.given)
                rows, draft_rows = usable_rows(session, shared, shared if other.keeps_drafter else 0)
                if rows > (0 if coming is None else coming.rows):
                    coming = _Found(other.name, rows, draft_rows, len(other.given))
        more = 0 if coming is None else coming.rows - (0 if best is None else best.rows)
        return best, coming if more > self._spec.prefill_rows * self._spec.num_stages else None

    def _open_rows(self, session: DraftSession, sessions: Iterable[DraftSession]) -> list[PrefixSource]:
        return [
            PrefixSource(other.name, cached_tokens(other), other.draft_rows, len(other.given))
            for other in sessions
            if self._may_copy(other, session)
        ]

    def _may_copy(self, other: DraftSession, session: DraftSession) -> bool:
        opened = other is not session and other.name not in self._waiting
        return opened and other.request.reuses_prefix


def cached_tokens(session: DraftSession) -> IntArray:
    """Return the tokens of the rows of a session that every stage of the target has computed: int64 [n]."""
    return session.ledger(TARGET).cached_tokens


def usable_rows(session: DraftSession, common: int, draft_rows: int) -> tuple[int, int]:
    """Return how many rows, and true rows of the drafter, a session can begin with.

    Args:
        common: tokens with which it and another session begin alike, all of them computed.
        draft_rows: true rows of the other session that the drafter has.
    """
    # True row t has token t + 1, so that the last common token makes no true row. The last row of a prompt
    # is always computed, because the first token is drawn from it.
    rows = max(common - 1, 0)
    if not session.strategy.needs_drafter:
        return rows, 0
    drafted = min(rows, draft_rows)
    return (drafted if session.needs_features else rows), drafted
