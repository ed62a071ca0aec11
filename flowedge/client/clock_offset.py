"""How far another device's monotonic clock is from ours, from exchanges of a few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """One question for a device's clock, in seconds.

    Attributes:
        sent, received: when the question left and the answer came, on the caller's clock.
        device: what the answer says, on the device's clock.
        wall, device_wall: the clocks on the wall (seconds since 1970) when the answer came here, and in it; 0
            when the device does not say.
    """

    sent: float
    received: float
    device: float
    wall: float = 0.0
    device_wall: float = 0.0

    @property
    def round_trip(self) -> float:
        return self.received - self.sent


@dataclass(frozen=True)
class ClockOffset:
    """A device's clock against the caller's, in seconds; the true offset is within `uncertainty`."""

    offset: float  # device's time minus caller's time
    uncertainty: float

    @classmethod
    def estimate(cls, exchanges: Sequence[Exchange]) -> ClockOffset:
        """From the exchange with the shortest round trip, whose answer was in the middle of it, give or take
        half of it. ValueError for none."""
        if not exchanges:
            raise ValueError("no exchange to estimate a clock offset from")
        best = min(exchanges, key=lambda exchange: exchange.round_trip)
        return cls(best.device - (best.sent + best.received) / 2, best.round_trip / 2)

    @classmethod
    def of_walls(cls, exchanges: Sequence[Exchange]) -> ClockOffset | None:
        """The same of the clocks on the wall; None when the device does not say what its own shows."""
        told = [
            Exchange(exchange.wall - exchange.round_trip, exchange.wall, exchange.device_wall)
            for exchange in exchanges
            if exchange.device_wall
        ]
        return cls.estimate(told) if told else None

    def to_caller(self, device: float) -> float:
        """A time of the device's clock on the caller's."""
        return device - self.offset
