"""An attacker that speaks HTTP/2 by itself, with messages that lack their end and replies unread."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowedge.network.address import split_address
from tests.cluster.floods import attacker_context

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW, MAX_FRAME = 4, 5  # settings
WINDOW_BYTES = 65535
FRAME_BYTES = 16384


class RawCaller:
    """One connection. It obeys the windows of the server, and gives the server a window of its own choice.

    Attributes:
        received: bytes of replies of each stream.
        ended: the streams that the server has ended.
    """

    def __init__(
        self, address: str, state: Path | None, reply_window: int = WINDOW_BYTES, *, plaintext: bool = False
    ) -> None:
        """state: directory of a member's credentials; None for a caller without a certificate."""
        plain = socket.create_connection(split_address(address), 10)
        certificate = None if state is None else state / "identity" / "member.pem"
        self._socket = plain if plaintext else attacker_context(certificate).wrap_socket(plain)
        self._socket.settimeout(None)
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._window, self._initial = WINDOW_BYTES, WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self._closed = False
        self._next = 1
        self.received: dict[int, int] = {}
        self.ended: set[int] = set()
        self._write(PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, reply_window)))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, extra: bytes = b"") -> int:
        """Begin a call; return its stream.

        extra: the value of a header "x-extra", which is sent if it is not empty.
        """
        with self._changed:
            stream, self._next = self._next, self._next + 2
            self._windows[stream] = self._initial
        headers = {
            ":method": "POST",
            ":scheme": "https",
            ":path": method,
            ":authority": "agent",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        if extra:
            block += b"\0" + _text("x-extra") + bytes([len(extra)]) + extra
        self._write(_frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def request(self, method: str, message: bytes) -> int:
        """Make a call with a whole request of less than a window; return its stream."""
        stream = self.call(method)
        self._write(_frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message))
        return stream

    def half_send(self, stream: int, size: int, patience_s: float) -> int:
        """Send a message of `size` bytes without its last byte; return how many bytes the server took.

        patience_s: how long the server may take nothing before the rest is given up.
        """
        head, left, sent = b"\0" + struct.pack(">I", size), size + 4, 0
        while left:
            count = self._take_window(stream, left, patience_s)
            if not count:
                break
            self._write(_frame(DATA, 0, stream, head[:count] + bytes(count - len(head[:count]))))
            head, left, sent = head[count:], left - count, sent + count
        return sent

    def reset(self, stream: int) -> None:
        self._write(_frame(RESET, 0, stream, struct.pack(">I", 8)))

    def read_on(self, stream: int, size: int = 1 << 15) -> None:
        """Let the server send so many more bytes of its reply."""
        self._write(_frame(WINDOW, 0, stream, struct.pack(">I", size)))

    def await_end(self, stream: int, seconds: float) -> bool:
        """Wait for the end of a stream; return whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: stream in self.ended, seconds)

    def close(self) -> None:
        """End the connection; the reader ends first, or it would read from the next socket of this number."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(10)
        with self._writing:
            self._socket.close()

    def _take_window(self, stream: int, most: int, patience_s: float) -> int:
        deadline = time.monotonic() + patience_s
        with self._changed:
            while True:
                room = min(self._window, self._windows[stream], FRAME_BYTES, most)
                left = deadline - time.monotonic()
                if self._closed or stream in self.ended or (room <= 0 and left <= 0):
                    return 0
                if room > 0:
                    self._window -= room
                    self._windows[stream] -= room
                    return room
                self._changed.wait(left)

    def _write(self, data: bytes) -> None:
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError:
            self._closed = True

    def _read(self) -> None:
        try:
            while True:
                head = self._exactly(9)
                body = self._exactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, body)
        except (OSError, EOFError, ValueError):  # a closed socket has no descriptor to wait for
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        with self._changed:
            if kind == WINDOW and stream:
                self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(body, "big")
            elif kind == WINDOW:
                self._window += int.from_bytes(body, "big")
            elif kind == DATA:
                self.received[stream] = self.received.get(stream, 0) + len(body)
            elif kind == SETTINGS and not flags & ACK:
                self._take_settings(body)
            if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                self.ended.add(stream)
            self._changed.notify_all()
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._write(_frame(kind, ACK, 0, body if kind == PING else b""))

    def _take_settings(self, body: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", body):
            if name == INITIAL_WINDOW:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value

    def _receive(self, most: int) -> bytes:
        """Receive when there is something: two threads must not use one TLS object at the same time."""
        while True:
            readable = select.select([self._socket], [], [], 0.1)[0]
            with self._writing:
                if readable or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                    return self._socket.recv(most)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._receive(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data


@contextmanager
def raw_caller(
    address: str, state: Path | None, reply_window: int = WINDOW_BYTES, *, plaintext: bool = False
) -> Iterator[RawCaller]:
    caller = RawCaller(address, state, reply_window, plaintext=plaintext)
    try:
        yield caller
    finally:
        caller.close()


def half_send_many(caller: RawCaller, method: str, calls: int, size: int, patience_s: float) -> int:
    """Half-send a message in each of many calls at the same time; return the bytes that the server took."""
    taken: list[int] = []
    streams = [caller.call(method) for _ in range(calls)]

    def send(stream: int) -> None:
        taken.append(caller.half_send(stream, size, patience_s))

    threads = [threading.Thread(target=send, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(taken)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _text(text: str) -> bytes:
    """A literal of HPACK, without Huffman coding; shorter than 127 characters."""
    return bytes([len(text)]) + text.encode()
