"""Frames that travel in pieces."""

from __future__ import annotations

import random
import struct

import pytest

from flowedge.core.messages import PIECE_BYTES
from flowedge.live.transport.pieces import PieceJoiner, in_pieces
from flowedge.protocol.frame_error import FrameError

MOST = 8 * PIECE_BYTES


def frame(size: int) -> bytes:
    return b"\x12" + random.Random(size).randbytes(size - 1)


def piece(total: int, place: int, data: bytes) -> bytes:
    return struct.pack("<BII", 0, total, place) + data


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, MOST])
def test_a_frame_arrives_as_it_was_sent(size: int) -> None:
    joiner, sent = PieceJoiner(), frame(size)
    messages = list(in_pieces(sent))
    assert all(len(message) <= PIECE_BYTES + 16 for message in messages)
    *begun, whole = [joiner.take(message, MOST) for message in messages]
    assert whole == sent and set(begun) <= {None}
    assert not joiner.waiting


def test_a_small_frame_is_not_copied() -> None:
    sent = frame(PIECE_BYTES)
    assert next(in_pieces(sent)) is sent
    assert PieceJoiner().take(sent, MOST) is sent


def test_another_frame_passes_between_two_pieces() -> None:
    joiner, sent = PieceJoiner(), frame(2 * PIECE_BYTES)
    first, second = in_pieces(sent)
    assert joiner.take(first, MOST) is None
    assert joiner.take(b"heartbeat", MOST) == b"heartbeat"
    assert joiner.waiting
    assert joiner.take(second, MOST) == sent


FULL = bytes(PIECE_BYTES)


@pytest.mark.parametrize(
    "messages",
    [
        [piece(0, 0, b"")],
        [piece(2 * PIECE_BYTES, 0, b"")],
        [b"\x00"],
        [piece(10, 0, bytes(10))],  # a frame that needs no pieces
        [piece(MOST + 1, 0, FULL)],
        [piece(0xFFFFFFFF, 0, FULL)],
        [piece(2 * PIECE_BYTES, PIECE_BYTES, FULL)],  # no first piece
        [piece(2 * PIECE_BYTES, 0, FULL[1:])],  # a short piece
        [piece(2 * PIECE_BYTES, 0, FULL + b"1")],
        [piece(3 * PIECE_BYTES, 0, FULL), piece(3 * PIECE_BYTES, 0, FULL)],
        [piece(3 * PIECE_BYTES, 0, FULL), piece(3 * PIECE_BYTES, 2 * PIECE_BYTES, FULL)],
        [piece(3 * PIECE_BYTES, 0, FULL), piece(4 * PIECE_BYTES, PIECE_BYTES, FULL)],
        [piece(PIECE_BYTES + 1, 0, FULL), piece(PIECE_BYTES + 1, PIECE_BYTES, b"12")],
        [bytes(1) + FULL],
        [b"\x12" + bytes(MOST)],
    ],
)
def test_pieces_that_do_not_fit_are_dropped(messages: list[bytes]) -> None:
    joiner = PieceJoiner()
    with pytest.raises(FrameError):
        for message in messages:
            joiner.take(message, MOST)
    assert not joiner.waiting
    good = frame(2 * PIECE_BYTES)
    assert [joiner.take(message, MOST) for message in in_pieces(good)][-1] == good
