"""Frames that are larger than a message of gRPC may be, and travel as several messages.

A piece is a zero byte, the length of the whole frame, the place of the piece in it (little endian, 4 bytes
each), and the bytes. No frame begins with a zero byte, since protobuf has no field 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from flowedge.core.messages import PIECE_BYTES
from flowedge.protocol.frame_error import FrameError

_HEADER = struct.Struct("<BII")
_MARK = 0


def in_pieces(frame: bytes) -> Iterator[bytes]:
    """Yield the messages by which a frame travels: the frame itself where it is small enough."""
    if len(frame) <= PIECE_BYTES:
        yield frame
        return
    whole = memoryview(frame)
    for place in range(0, len(frame), PIECE_BYTES):
        yield _HEADER.pack(_MARK, len(frame), place) + whole[place : place + PIECE_BYTES]


class PieceJoiner:
    """Puts the frames of one stream together. It holds at most one frame that is not complete."""

    def __init__(self) -> None:
        self._begun: bytearray | None = None
        self._total = 0

    @property
    def waiting(self) -> bool:
        """Whether pieces of a frame are still to come."""
        return self._begun is not None

    def take(self, message: bytes, most: int) -> bytes | bytearray | None:
        """Return the frame that a message completes; None if more pieces are to come.

        most: bytes that a frame of the stream may have.

        Raises:
            FrameError: when the frame is larger, or the piece does not continue the one before it. What has
                come of the frame is dropped then.
        """
        if message[:1] != bytes((_MARK,)):
            if len(message) > most:
                raise FrameError("", f"a frame of {len(message)} bytes; at most {most} are allowed")
            return message
        try:
            return self._join(message, most)
        except FrameError:
            self.drop()
            raise

    def drop(self) -> None:
        """Forget the pieces of a frame that will not be completed."""
        self._begun, self._total = None, 0

    def _join(self, message: bytes, most: int) -> bytearray | None:
        size = len(message) - _HEADER.size
        if size < 1:
            raise FrameError("", "a piece of a frame is empty")
        _, total, place = _HEADER.unpack_from(message)
        if total > most:
            raise FrameError("", f"a frame of {total} bytes; at most {most} are allowed")
        if place == 0 and self._begun is None and total > PIECE_BYTES:
            self._begun, self._total = bytearray(), total
        if self._begun is None or (total, place) != (self._total, len(self._begun)):
            raise FrameError("", "a piece does not continue the frame before it")
        if size != min(PIECE_BYTES, total - place):
            raise FrameError("", f"a piece has {size} bytes where {total - place} of its frame are left")
        self._begun += memoryview(message)[_HEADER.size :]
        if len(self._begun) < total:
            return None
        whole = self._begun
        self.drop()
        return whole
