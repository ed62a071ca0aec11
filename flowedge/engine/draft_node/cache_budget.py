"""The cache rows that a pipeline has for all sessions together, and what its open sessions hold of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from flowedge.core.errors import ContextLengthError
from flowedge.engine.pages import PAGE_ROWS, SharedPages

UNLIMITED_ROWS = 1 << 40
UNKNOWN_TOKENS = 256  # that an answer is expected to have before some have ended
RECENT = 32  # ended sessions by which others are judged
SHARE = 0.9  # of their answers, which were not longer than is expected


@dataclass(frozen=True)
class AdmissionLimits:
    """How many sessions a draft node opens, and how many requests wait.

    Attributes:
        total_rows: cache rows that each stage has for all sessions together; the least of all stages.
        session_rows: cache rows that each stage has for one session; the least of all stages.
        drafter_rows: cache rows that the drafter has for all sessions together.
        sessions: most sessions open at once.
        queue_length: most requests that wait.
        queue_s: seconds after which a waiting request is refused.
        overtakes: how many later requests may be opened before a request that does not fit yet.
        on_demand: whether all caches take memory as rows are written, so that a session need not hold all
            rows that it may come to.
        state_rows: cache rows that a session's states in recurrent layers count as, beside its rows; the most
            of all stages.
        page_saving: cache rows by which a session counts less for each page that it shares with another, on
            all stages; 0 where one of them shares no pages.
        sharing: how many sessions can share pages at once.
    """

    total_rows: int = UNLIMITED_ROWS
    session_rows: int = UNLIMITED_ROWS
    drafter_rows: int = UNLIMITED_ROWS
    sessions: int = 1 << 16
    queue_length: int = 128
    queue_s: float = 120.0
    overtakes: int = 4
    on_demand: bool = False
    state_rows: int = 0
    page_saving: int = PAGE_ROWS
    sharing: int = 1 << 16

    @property
    def promote_s(self) -> float:
        """Seconds after which a waiting request moves up by one priority class."""
        return self.queue_s / 4

    def within(
        self,
        *,
        total_rows: int,
        session_rows: int,
        sessions: int,
        on_demand: bool,
        state_rows: int = 0,
        page_saving: int = 0,
        sharing: int = 0,
    ) -> AdmissionLimits:
        """Return the limits with another stage; 0 stands for a limit that the stage has not given."""
        return replace(
            self,
            total_rows=min(self.total_rows, total_rows or self.total_rows),
            session_rows=min(self.session_rows, session_rows or self.session_rows),
            sessions=min(self.sessions, sessions or self.sessions),
            on_demand=self.on_demand and on_demand,
            state_rows=max(self.state_rows, state_rows),
            page_saving=min(self.page_saving, page_saving),
            sharing=min(self.sharing, sharing),
        )


@dataclass(frozen=True)
class CacheClaim:
    """What one session needs.

    Attributes:
        rows: cache rows on every stage; drafter_rows: of the drafter, 0 for a session that does not draft.
    """

    rows: int
    drafter_rows: int = 0

    def of_rows(self, rows: int) -> CacheClaim:
        """Return the claim of the same session for other rows."""
        return CacheClaim(rows, rows if self.drafter_rows else 0)


class SharedPrefix(NamedTuple):
    """The first pages of another session, which a session would share with it."""

    source: str
    pages: int


class AnswerLengths:
    """How long answers are expected to be, by those that have ended."""

    def __init__(self) -> None:
        self._tokens: deque[int] = deque(maxlen=RECENT)

    def ended(self, tokens: int) -> None:
        """Take note of an answer that has ended."""
        self._tokens.append(tokens)

    def to_come(self, answered: int) -> int:
        """Return the tokens that are expected of an answer that has so many.

        One that is longer than expected counts as half done, so that it makes room a few times at most.
        """
        known = sorted(self._tokens)
        expected = known[int(SHARE * len(known))] if len(known) >= RECENT // 4 else UNKNOWN_TOKENS
        return max(expected - answered, answered, 1)


class CacheBudget:
    """What open sessions hold, and whether another one fits.

    Attributes:
        rows: cache rows that open sessions hold on every stage, as if none shared pages; drafter_rows: of the
            drafter, which shares none.
        shared: the pages that open and retained sessions have in common.
    """

    def __init__(self) -> None:
        self.shared = SharedPages()
        self.rows = 0
        self.drafter_rows = 0
        self._held: dict[str, CacheClaim] = {}

    def hold(self, session: str, claim: CacheClaim) -> None:
        self._held[session] = claim
        self.rows += claim.rows
        self.drafter_rows += claim.drafter_rows

    def grow(self, session: str, rows: int) -> bool:
        """Have an open session hold so many rows, if it holds fewer; return whether it did."""
        held = self._held[session]
        if rows <= held.rows:
            return False
        self.release(session)
        self.hold(session, held.of_rows(rows))
        return True

    def release(self, session: str) -> bool:
        """Take back what a session holds; return whether it held anything."""
        claim = self._held.pop(session, None)
        if claim is None:
            return False
        self.rows -= claim.rows
        self.drafter_rows -= claim.drafter_rows
        return True

    def rows_over(self, retained_rows: int, limits: AdmissionLimits) -> int:
        """Return by how many cache rows open and retained sessions exceed the capacity; 0 if they do not.

        retained_rows: of sessions that have ended, whose rows count on stages and in the drafter alike.
        """
        states = len(self._held) * limits.state_rows
        saved = self.saved_rows(limits, None if retained_rows else self._held)
        over_stages = self.rows + states + retained_rows - saved - limits.total_rows
        over_drafter = self.drafter_rows + retained_rows - limits.drafter_rows
        return max(over_stages, over_drafter, 0)

    def saved_rows(self, limits: AdmissionLimits, sessions: Collection[str] | None = None) -> int:
        """Return the cache rows that sessions save on every stage by what they share.

        sessions: None for all open and retained sessions.
        """
        return self.shared.saved(sessions) * limits.page_saving

    def fits(
        self,
        claim: CacheClaim,
        limits: AdmissionLimits,
        without: Iterable[str] = (),
        begins_as: SharedPrefix | None = None,
    ) -> bool:
        """Return whether there is capacity for another session now.

        Args:
            without: open sessions that would end; begins_as: what the other session would share.
        """
        ending = {session: self._held[session] for session in without}
        staying = self._held.keys() - ending.keys()
        rows = self.rows - sum(each.rows for each in ending.values()) + claim.rows
        rows -= self.saved_rows(limits, staying)
        if begins_as is not None:
            rows -= self.shared.held(begins_as.source, begins_as.pages, staying) * limits.page_saving
        rows += (len(self._held) - len(ending) + 1) * limits.state_rows
        drafter_rows = self.drafter_rows - sum(each.drafter_rows for each in ending.values())
        drafter_rows += claim.drafter_rows
        return (
            len(self._held) - len(ending) < limits.sessions
            and rows <= limits.total_rows
            and (not claim.drafter_rows or drafter_rows <= limits.drafter_rows)
        )


def rows_alone(limits: AdmissionLimits, *, drafts: bool) -> int:
    """Return the most cache rows of a session in a pipeline that has no other session.

    drafts: whether the session holds as many rows in the drafter.
    """
    stage_rows = min(limits.session_rows, limits.total_rows - limits.state_rows)
    return min(stage_rows, limits.drafter_rows) if drafts else stage_rows


def check_fits_alone(claim: CacheClaim, limits: AdmissionLimits, device: str) -> None:
    """Check that a session fits a pipeline that has no other session.

    device: the draft node, for messages.

    Raises:
        ContextLengthError: when it does not; the error says by how much.
    """
    for rows, capacity, where in (
        (claim.rows, rows_alone(limits, drafts=False), "the caches of the stages"),
        (claim.drafter_rows, limits.drafter_rows, f"the drafter's cache on device {device}"),
    ):
        if rows > capacity:
            raise ContextLengthError(
                f"the request needs {rows} cache rows, and {where} have room for {capacity}: lower "
                f"max_new_tokens by {rows - capacity} or more, or shorten the prompt"
            )
