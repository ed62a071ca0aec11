"""An admission with sessions that hold rows and do nothing, on a clock that a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flowedge.core.request import Failed, Opened, Output, Waiting
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.session_admission import SessionAdmission


class AdmissionRig:
    """Drives an admission as the draft node does.

    Attributes:
        opened: the names of sessions, in the order in which they were opened; told: all outputs.
    """

    def __init__(self, **limits: Any) -> None:
        self.limits = AdmissionLimits(**limits)
        self.admission = SessionAdmission("d0", self.limits)
        self.now = 0.0
        self.opened: list[str] = []
        self.open: dict[str, int] = {}
        self.told: list[Output] = []

    def arrive(
        self,
        name: str,
        rows: int = 1,
        priority: str = "normal",
        *,
        drafts: bool = False,
        goes_on: bool = False,
    ) -> None:
        session: Any = SimpleNamespace(
            name=name,
            capacity=rows,
            may_pause=False,
            goes_on=goes_on,
            request=SimpleNamespace(priority=priority),
            strategy=SimpleNamespace(needs_drafter=drafts),
        )
        self.admission.arrive(session, self.now)
        self.admit()

    def admit(self) -> None:
        for session in self.admission.admit(self.now):
            self.opened.append(session.name)
            self.open[session.name] = session.capacity
        self.told += self.admission.take_outputs()

    def end(self, name: str) -> None:
        del self.open[name]
        self.admission.release(name, self.now)
        self.admit()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.admit()

    @property
    def positions(self) -> dict[str, int]:
        """The place of each waiting session, as the client was told last."""
        told = {each.session: each.position for each in self.told if isinstance(each, Waiting)}
        return {name: told[name] for name in self.admission.waiting}

    def waits(self) -> dict[str, float]:
        return {each.session: each.waited_s for each in self.told if isinstance(each, Opened)}

    def errors(self) -> dict[str, Any]:
        return {each.session: each.error for each in self.told if isinstance(each, Failed)}
