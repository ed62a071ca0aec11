"""The error of a frame that is not valid."""

from __future__ import annotations

from flowedge.core.errors import ProtocolError


class FrameError(ProtocolError):
    """A frame that is not valid.

    Attributes:
        session: name of the frame's session, "" where the frame names none.
    """

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(reason)
        self.session = session
