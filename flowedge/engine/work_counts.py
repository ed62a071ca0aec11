"""What a machine did for all its sessions together, in the time since it was last asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

CLOSED = "closed"  # a session that its draft node closed
CANCELLED = "cancelled"  # a request whose client went away
PIPELINE_ENDED = "pipeline_ended"


@dataclass
class WorkCounts:
    """To be added to, and handed on.

    Attributes:
        opened: sessions that began here; ended: sessions that ended, by why: a constant of this module, a
            finish reason or the code of a FlowEdgeError.
        work: by the names of StageReport's fields.
    """

    opened: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)

    def take(self) -> WorkCounts:
        """A copy of the counts, which begin anew."""
        taken = WorkCounts(self.opened, Counter(self.ended), Counter(self.work))
        self.opened = 0
        self.ended.clear()
        self.work.clear()
        return taken

    def __bool__(self) -> bool:
        return bool(self.opened or self.ended or self.work)
