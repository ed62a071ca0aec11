"""Finding the frames in the bytes of a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowedge.protocol.frame_bounds import SEGMENT_HEAD_BYTES
from flowedge.protocol.wire import LENGTHS

BUFFER_BYTES = 64 << 10
LARGEST_BYTES = (1 << 30) + (1 << 20)  # no setting allows a larger frame


class FrameReader:
    """Puts the frames of one connection together. It holds at most one frame that is not complete.

    Bytes come into the memory that `space` returns. The tail of a large segment is received where it stays:
    the payload is an array over that memory.

    Attributes:
        most: most bytes of a frame. A larger frame is skipped.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._stop = 0  # of the bytes in the buffer that belong to no part yet
        self._parts: list[bytearray] = []  # head and tail of the frame that has begun
        self._filled = 0  # bytes of the part that is being received
        self._place = 0  # of that part in `_parts`
        self._skipping = 0  # bytes of a frame that is too large, still to come

    @property
    def in_chunks(self) -> bool:
        """Whether a part of a frame is being received that is larger than the buffer."""
        return bool(self._parts) or self._skipping > 0

    def space(self) -> memoryview:
        """Return the memory for the next bytes of the connection; it is never empty."""
        if self._parts:
            return memoryview(self._parts[self._place])[self._filled :]
        if self._start == self._stop:
            self._start = self._stop = 0
        elif self._stop == BUFFER_BYTES:  # less than the lengths are left
            rest = bytes(self._buffer[self._start : self._stop])
            self._buffer[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        return self._buffer[self._stop :]

    def filled(self, count: int, on_too_large: Callable[[int], None]) -> Iterator[tuple[bytes, bytearray]]:
        """Take note that `count` bytes came into `space`; yield head and tail of the complete frames.

        on_too_large: called with the bytes of a frame that is skipped.

        Raises:
            ConnectionError: when a frame is larger than any device sends: the bytes before it were no frames.
        """
        if self._parts:
            self._filled += count
        else:
            self._stop += count
        while (frame := self._next(on_too_large)) is not None:
            yield frame

    def _next(self, on_too_large: Callable[[int], None]) -> tuple[bytes, bytearray] | None:
        """Return the next frame if its bytes have come."""
        while True:
            if self._parts:
                self._fill_from_buffer()
                if self._filled < len(self._parts[self._place]):
                    return None
                self._place, self._filled = self._place + 1, 0
                if self._place < len(self._parts):
                    continue
                head, tail = self._parts
                self._parts, self._place = [], 0
                return bytes(head), tail
            if self._skipping:
                skipped = min(self._skipping, self._stop - self._start)
                self._start += skipped
                self._skipping -= skipped
                if self._skipping:
                    return None
            if self._stop - self._start < LENGTHS.size:
                return None
            head_bytes, tail_bytes = LENGTHS.unpack_from(self._buffer, self._start)
            self._start += LENGTHS.size
            total = LENGTHS.size + head_bytes + tail_bytes
            if total > LARGEST_BYTES:
                raise ConnectionError(f"its frames are out of step: one says that it has {total} bytes")
            if total > self.most or head_bytes > SEGMENT_HEAD_BYTES:
                self._skipping = head_bytes + tail_bytes
                on_too_large(total)
                continue
            found = self._whole(head_bytes, tail_bytes)
            if found is not None:
                return found
            # Memory that nothing is written to yet: the pages come with the bytes.
            self._parts = [bytearray(head_bytes), bytearray(tail_bytes)]

    def _whole(self, head_bytes: int, tail_bytes: int) -> tuple[bytes, bytearray] | None:
        """Return head and tail if both are in the buffer."""
        middle = self._start + head_bytes
        stop = middle + tail_bytes
        if stop > self._stop:
            return None
        head, tail = bytes(self._buffer[self._start : middle]), bytearray(self._buffer[middle:stop])
        self._start = stop
        return head, tail

    def _fill_from_buffer(self) -> None:
        part = self._parts[self._place]
        moved = min(len(part) - self._filled, self._stop - self._start)
        if moved:
            part[self._filled : self._filled + moved] = self._buffer[self._start : self._start + moved]
            self._start += moved
            self._filled += moved
