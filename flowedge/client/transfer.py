"""How far a device has come with fetching its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowedge.v1 import agent_pb2 as pb


@dataclass(frozen=True)
class Transfer:
    """Bytes that are here of those wanted.

    Attributes:
        rate: bytes a second; left_s: until all is here, None while it cannot be told.
    """

    done: int
    total: int
    rate: float
    left_s: float | None

    @classmethod
    def from_proto(cls, transfer: pb.Transfer) -> Transfer:
        left = transfer.left_s if transfer.left_s >= 0 else None
        return cls(transfer.done_bytes, transfer.total_bytes, transfer.bytes_per_s, left)


OnTransfer = Callable[[str, Transfer], None]  # device, how far it is
