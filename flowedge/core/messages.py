"""Everything that crosses a link of the pipeline, as frozen dataclasses.

Row indices are indices in the session's sequence, in the numbering of the message's epoch. `wire.py` turns
these into protobuf and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from flowedge.core.arrays import IntArray, Payload

CONTEXT = -1  # the parent of a row whose parent is the committed context
MAX_FRAME_BYTES = 64 << 20  # size of an encoded message


@dataclass(frozen=True)
class Open:
    """Start of a session: every stage allocates a cache of `capacity` rows, once."""

    session: str
    capacity: int


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that go through the pipeline together; also the result that comes back from the last stage.

    Attributes:
        number: counts the session's segments from 0; every segment returns to D0 once, even when empty.
        epoch: the numbering that `first_row` and `parents` are in.
        committed: the rows are context as soon as they are cached (prefill, autoregressive decoding).
        first_row: row of the first of n consecutive rows.
        positions: int64 [n] absolute positions, context length + depth.
        parents: int64 [n] parent rows, CONTEXT where the parent is the last context row.
        payload: int32 [n] token ids into the first stage, [n, width] after it: the hidden state, then what
            was tapped for the drafter so far (see models/layers/taps.py).
        padding: bytes to send along, so that an emulated model's transfer takes its real size.
    """

    session: str
    number: int
    epoch: int
    committed: bool
    first_row: int
    positions: IntArray
    parents: IntArray
    payload: Payload
    padding: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    def take(self, kept: IntArray) -> Segment:
        """The segment with only the rows at the offsets `kept`; row numbers are the caller's to set."""
        if len(kept) == self.num_rows:
            return self
        return replace(
            self,
            positions=self.positions[kept],
            parents=self.parents[kept],
            payload=self.payload[kept],
            padding=self.padding * len(kept) // self.num_rows,
        )

    def joined(self, following: Segment) -> Segment:
        """These rows and those of the segment after it, which are consecutive, under the number of that."""
        return replace(
            following,
            first_row=self.first_row if self.num_rows else following.first_row,
            positions=np.concatenate([self.positions, following.positions]),
            parents=np.concatenate([self.parents, following.parents]),
            payload=np.concatenate([self.payload, following.payload]),
            padding=self.padding + following.padding,
        )


@dataclass(frozen=True, eq=False)
class Prune:
    """Change number `epoch` of a session's sequence (flowspec, section 3.3).

    Attributes:
        source_len: length of the sequence it applies to; an index at or beyond it is an error.
        context: number of context rows before the change (l_glo).
        accepted: how many of `retained`, from its start, become context.
        retained: int64 [m], ascending: the accepted rows, then the subtree of the new root (I_retain).
    """

    session: str
    epoch: int
    source_len: int
    context: int
    accepted: int
    retained: IntArray


@dataclass(frozen=True)
class StageReport:
    """What one stage did for one session."""

    device: str
    segments: int = 0
    rows_computed: int = 0
    rows_trimmed: int = 0  # rows dropped before they were computed
    rows_wasted: int = 0  # rows that were computed and then dropped
    aborted: int = 0  # computations stopped between layers
    busy_s: float = 0.0
    bytes_sent: int = 0


@dataclass(frozen=True)
class Close:
    """End of a session; in-band it collects the reports of the stages it passes."""

    session: str
    reports: tuple[StageReport, ...] = ()


@dataclass(frozen=True)
class Credit:
    """The first stage has room for one more segment of the session."""

    session: str


@dataclass(frozen=True)
class Fault:
    """A session failed on a device; `code` is the code of a FlowEdgeError."""

    session: str
    device: str
    code: str
    reason: str


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life; the device is working as long as these come."""

    sequence: int


Message: TypeAlias = Open | Segment | Prune | Close | Credit | Fault | Heartbeat


def no_rows(segment: Segment) -> Segment:
    """The header of a segment that has no live row left."""
    return segment.take(np.zeros(0, dtype=np.int64))
