"""What a stage has tapped of draft rows, kept until a prune accepts or drops the rows."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Prune
from flowedge.protocol.epochs import retained_from


class KeptTaps:
    """The tapped values of the draft rows that a stage has computed, in the numbering of the session."""

    def __init__(self, hidden: int) -> None:
        """hidden: values of a row before those that the stage has tapped."""
        self._hidden = hidden
        self._rows: list[Payload] = []

    def take(self, rows: Payload) -> Payload:
        """Keep what was tapped of the next draft rows [n, width]; return the rest of them [n, hidden]."""
        self._rows += list(rows[:, self._hidden :])
        rest: Payload = rows[:, : self._hidden]
        return rest

    def apply(self, prune: Prune) -> Payload | None:
        """Drop the rows that a prune does not retain; return those that it accepts, None if there are none.

        Raises:
            ProtocolError: when it accepts a row that is not computed yet.
        """
        kept = retained_from(prune, prune.context, len(self._rows)).tolist()
        if prune.accepted > len(kept):
            raise ProtocolError(f"prune {prune.epoch} accepts rows that are not computed yet")
        accepted = [self._rows[row] for row in kept[: prune.accepted]]
        self._rows = [self._rows[row] for row in kept[prune.accepted :]]
        return np.stack(accepted) if accepted else None
