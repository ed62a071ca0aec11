"""What the stages of a pipeline took for their last segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flowedge.core.messages import StageTime

KEPT = 64  # segments of each stage
MOST_ROWS = 64  # of a segment that counts; those of a prompt say more of attention


class StageWork:
    """Rows and seconds of the last segments that each stage has computed."""

    def __init__(self, stages: int) -> None:
        self._done = [deque[tuple[int, float]](maxlen=KEPT) for _ in range(stages)]

    def note(self, times: Sequence[StageTime]) -> None:
        """Take in a segment that has come back."""
        for done, time in zip(self._done, times, strict=False):
            if 0 < time.rows <= MOST_ROWS:
                done.append((time.rows, time.seconds))

    def of_each(self) -> list[list[tuple[int, float]]]:
        """Return rows and seconds of each stage, the latest last."""
        return [list(done) for done in self._done]
