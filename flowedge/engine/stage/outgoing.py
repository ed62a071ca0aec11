"""What a stage sends: in-band, back to the device before it, and straight to the draft node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import DeviceError, FlowEdgeError
from flowedge.core.messages import Credit, Fault, Segment, StageTime, Tapped
from flowedge.engine.commands import SendBack, SendExpress, SendInBand
from flowedge.engine.stage.stage_session import StageSession
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.protocol.frame_bounds import CONTROL_BYTES
from flowedge.protocol.outbox import Outbox

NOT_COMPUTED = StageTime(0, 0.0)
TAPPED_BYTES = CONTROL_BYTES // 2  # of tapped values in a message


class StageOutgoing:
    """The messages of a stage that wait to be sent.

    Attributes:
        in_band: those for the next device.
    """

    def __init__(self, device: str, spec: StageSpec) -> None:
        self._device = device
        self._spec = spec
        self.in_band = Outbox()
        self._others: list[SendBack | SendExpress] = []

    def take(self, *, ready: bool) -> list[SendBack | SendExpress | SendInBand]:
        """Return what is to be sent now: of the in-band messages one at most, and none if not `ready`."""
        commands: list[SendBack | SendExpress | SendInBand] = [*self._others]
        self._others.clear()
        if ready and (message := self.in_band.pop()) is not None:
            commands.append(SendInBand(message))
        return commands

    def credit(self, session: str) -> None:
        """Tell the draft node that a segment of a session has been taken up."""
        self._others.append(SendBack(Credit(session)))

    def tapped(self, session: str, rows: Payload) -> None:
        """Send tapped values [n, values] of accepted rows to the draft node, in messages of bounded size."""
        at_once = max(1, TAPPED_BYTES // rows[0].nbytes)
        for first in range(0, len(rows), at_once):
            message = Tapped(session, self._spec.width - self._spec.carried, rows[first : first + at_once])
            self._others.append(SendExpress(message))

    def fault(self, session: str, error: FlowEdgeError) -> None:
        """Tell the draft node of the error with which a session ends."""
        # A DeviceError's text begins with the device, which a Fault names in a field of its own.
        is_trusted_owner = isinstance(error, DeviceError) and error.device == self._device
        reason = error.reason if isinstance(error, DeviceError) and is_trusted_owner else str(error)
        self.in_band.put(Fault(session, self._device, error.code, reason))

    def clear(self) -> None:
        """Drop all messages."""
        self.in_band = Outbox()
        self._others.clear()

    def computed(self, segment: Segment, payload: Payload, time: StageTime) -> Segment:
        """Return a segment with the rows that this stage has computed, and the time that they took."""
        return replace(segment, payload=payload, stage_times=(*segment.stage_times, time))

    def empty(self, session: StageSession, segment: Segment) -> Segment:
        """Return a segment that came without rows, or lost all of them, as this stage hands it on."""
        payload: Payload = np.zeros(0, dtype=np.int32)
        if not self._spec.returns_tokens:
            width = session.handed_width(committed=segment.committed)
            payload = np.zeros((0, width), dtype=self._spec.dtype)
        return self.computed(segment, payload, NOT_COMPUTED)
