"""The sessions of a stage: open, ended while messages about them are still to come, and retained."""

from __future__ import annotations

from collections import deque

from flowedge.core.errors import FlowEdgeError, ProtocolError
from flowedge.core.messages import Close, Open, Prefix
from flowedge.core.request import StageReport
from flowedge.engine.jobs import CopiedRows
from flowedge.engine.pages import PAGE_ROWS, SharedPages
from flowedge.engine.stage.retained_caches import RetainedCaches
from flowedge.engine.stage.stage_session import StageSession
from flowedge.engine.stage.stage_spec import StageSpec

MAX_LATE_CLOSES = 1024  # ended sessions remembered, so that a late express Close is known as late


class SessionTable:
    """The sessions of a stage by name.

    Attributes:
        open: the open sessions.
        ended: the report of each session that has ended and whose in-band Close has not passed.
        retained: the caches of sessions that have ended.
        shared: the pages that open sessions and retained caches have in common.
    """

    def __init__(self, device: str, spec: StageSpec) -> None:
        self.open: dict[str, StageSession] = {}
        self.ended: dict[str, StageReport] = {}
        self.retained = RetainedCaches(spec.max_sessions)
        self.shared = SharedPages()
        self._device = device
        self._spec = spec
        self._passed: deque[str] = deque(maxlen=MAX_LATE_CLOSES)  # whose in-band Close has passed

    def find(self, name: str) -> StageSession:
        """Return an open session. Raises ProtocolError when it is not open."""
        if name not in self.open:
            raise ProtocolError(f"session {name} is not open here")
        return self.open[name]

    def computed_alone(self, name: str) -> bool:
        """Return whether a session is computed alone; one that is not open is, so that it fails alone."""
        return name not in self.open or self.open[name].computed_alone

    def refusal(self, opened: Open) -> FlowEdgeError | None:
        """Return the reason for which a session cannot be opened; None if it can."""
        return self._spec.refusal(opened, len(self.open), self.held_rows)

    def check_rows(self, session: StageSession, rows: int) -> None:
        """Check that there is memory for further rows of an open session, as the draft node sees to.

        Raises:
            ProtocolError: when there is not.
        """
        more = self._spec.held_rows(session.tail.cached + rows, session.capacity) - session.held_rows
        if more > 0 and self.held_rows + more > self._spec.max_total_capacity:
            most = self._spec.max_total_capacity
            raise ProtocolError(f"{rows} rows go beyond the {most} that this stage has for all sessions")

    @property
    def held_rows(self) -> int:
        """The cache rows by which open sessions and retained caches count together."""
        held = self.retained.held_rows + sum(session.held_rows for session in self.open.values())
        return held - self.shared.saved() * self._spec.page_saving

    def copied(self, prefix: Prefix) -> CopiedRows:
        """Return the rows that a new session begins with. Raises what RetainedCaches.copied raises."""
        source = self.open.get(prefix.session)
        return self.retained.copied(prefix, None if source is None else source.tail)

    def begin(self, session: StageSession, name: str, prefix: Prefix | None) -> None:
        """Take in a session that is opened."""
        self.open[name] = session
        if prefix is not None and prefix.shared:
            self.shared.share(name, prefix.session, prefix.shared // PAGE_ROWS)

    def refuse(self, name: str) -> None:
        """Remember a session that was not opened, until its in-band Close has passed."""
        self.ended[name] = StageReport(self._device)

    def end(self, name: str) -> None:
        """Remember only the report of an open session."""
        self.ended[name] = self.open.pop(name).report

    def close_early(self, name: str) -> None:
        """Remember a session whose express Close has overtaken its Open; a late express Close is ignored."""
        if name not in self._passed and len(self.ended) < MAX_LATE_CLOSES:
            self.ended.setdefault(name, StageReport(self._device))

    def pass_close(self, close: Close) -> tuple[StageReport, ...]:
        """Forget a session whose in-band Close has come; return the reports of the Close and its own."""
        self._passed.append(close.session)
        report = self.ended.pop(close.session, None) or StageReport(self._device)
        return (*close.reports, report)
