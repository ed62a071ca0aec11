"""How far another device's clocks are from ours, estimated from exchanges of a few bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from flowedge.core.errors import ProtocolError
from flowedge.network.grpc_status import from_status
from flowedge.v1 import agent_pb2 as pb


@dataclass(frozen=True)
class Exchange:
    """One question for a device's clocks; all times in seconds.

    Attributes:
        sent, received: when the question left and when the answer came, on the caller's monotonic clock.
        device: the device's monotonic clock, as the answer has it.
        wall, device_wall: the caller's wall clock (seconds since 1970) when the answer came, and the device's
            wall clock in it; 0 when the device does not report a wall clock.
    """

    sent: float
    received: float
    device: float
    wall: float = 0.0
    device_wall: float = 0.0

    @property
    def round_trip(self) -> float:
        return self.received - self.sent


async def exchange_clocks(stub: Any, address: str, answer_s: float) -> Exchange:
    """Ask the agent at `address` for its clocks once.

    Args:
        stub: of the Agent service there; answer_s: seconds that the agent may take.

    Raises:
        DeviceLostError: when the agent cannot be reached.
        DeadlineError: when the answer takes longer than `answer_s`.
        ProtocolError: when a clock is not a finite number.
    """
    sent = time.monotonic()
    try:
        reply = await stub.Clock(pb.ClockRequest(), timeout=answer_s)
    except grpc.RpcError as error:
        raise from_status(error, address) from error
    received, wall = time.monotonic(), time.time()
    if not (math.isfinite(reply.now_s) and math.isfinite(reply.wall_s)):
        raise ProtocolError(f"device {address} says that its clocks are at {reply.now_s} and {reply.wall_s}")
    return Exchange(sent, received, reply.now_s, wall, reply.wall_s)


@dataclass(frozen=True)
class ClockOffset:
    """A device's clock against the caller's, in seconds; the true offset is within `uncertainty` of it."""

    offset: float  # device's time minus caller's time
    uncertainty: float

    @classmethod
    def estimate(cls, exchanges: Sequence[Exchange]) -> ClockOffset:
        """Estimate the offset of the monotonic clocks from the exchange with the shortest round trip.

        The device is assumed to have answered in the middle of the round trip; half of it is the uncertainty.

        Raises:
            ValueError: when there is no exchange.
        """
        if not exchanges:
            raise ValueError("no exchange to estimate a clock offset from")
        best = min(exchanges, key=lambda exchange: exchange.round_trip)
        return cls(best.device - (best.sent + best.received) / 2, best.round_trip / 2)

    @classmethod
    def of_walls(cls, exchanges: Sequence[Exchange]) -> ClockOffset | None:
        """Estimate the offset of the wall clocks; None when the device does not report a wall clock."""
        reported = [
            Exchange(exchange.wall - exchange.round_trip, exchange.wall, exchange.device_wall)
            for exchange in exchanges
            if exchange.device_wall
        ]
        return cls.estimate(reported) if reported else None

    def to_caller(self, device: float) -> float:
        """Convert a time of the device's clock to the caller's clock."""
        return device - self.offset
