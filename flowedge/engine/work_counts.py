"""What a device has done and what it holds, over all sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

CLOSED = "closed"  # a session that its draft node closed
CANCELLED = "cancelled"  # a request whose client went away
PIPELINE_ENDED = "pipeline_ended"
TOO_LARGE = "too_large"  # a request for which the caches can never have capacity
QUEUE_FULL = "queue_full"  # a request that came when too many waited


@dataclass(frozen=True)
class Load:
    """What a device holds at one moment.

    Attributes:
        sessions: open sessions, and those whose end has not come back in-band.
        retained: ended sessions whose rows are retained for later prompts.
        queued: segments that wait to be computed; 0 on a draft node.
        waiting: requests that wait to be opened; 0 on a stage.
        drained: whether a stop would interrupt nothing: no session is open and no message waits to be sent.
    """

    sessions: int = 0
    retained: int = 0
    queued: int = 0
    waiting: int = 0
    drained: bool = True


@dataclass
class WorkCounts:
    """Counts that are added up and then handed on.

    Attributes:
        opened: sessions that were opened.
        ended: sessions that ended, by reason: a constant of this module, a finish reason, or the code of a
            FlowEdgeError.
        refused: requests that were never opened, by reason: TOO_LARGE, QUEUE_FULL, CANCELLED, or the code of
            the error that ended the wait.
        work: sums of StageReport's fields, by name.
    """

    opened: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def take(self) -> WorkCounts:
        """Return a copy of the counts and set them to 0."""
        taken = WorkCounts(self.opened, Counter(self.ended), Counter(self.work), Counter(self.refused))
        self.opened = 0
        self.ended.clear()
        self.work.clear()
        self.refused.clear()
        return taken

    def __bool__(self) -> bool:
        return bool(self.opened or self.ended or self.work or self.refused)
