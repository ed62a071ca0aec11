"""Limits on how much a measurement of a link sends, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError

# Initial metadata of a call that is accepted. A sender waits for it, since writing to a call that is being
# refused can hide the reason.
ACCEPTED_KEY = "flowedge-accepted"


@dataclass(frozen=True)
class LinkLimits:
    """Sizes in bytes, times in seconds; sender and receiver have the same limits."""

    min_bytes: int = 1 << 18
    max_bytes: int = 1 << 28
    chunk_bytes: int = 1 << 17  # as large as a segment of 16 rows of a 7B model
    warm_up_share: int = 8  # 1/8 of the bytes is sent before the clock starts
    send_s: float = 10.0  # sending stops after this, on a link that is too slow for all bytes
    warm_up_s: float = 2.0  # the warm-up stops after this
    max_round_trips: int = 500
    probe_bytes: int = 64
    max_probe_bytes: int = 1024
    warm_up_round_trips: int = 10
    step_s: float = 10.0  # for a chunk to be taken, or a probe to come back
    total_s: float = 60.0  # for one call

    @property
    def most_received(self) -> int:
        """Bytes of the largest measurement and its warm-up, both rounded up to chunks."""
        return self.max_bytes + self.max_bytes // self.warm_up_share + 2 * self.chunk_bytes

    def check(self, num_bytes: int, round_trips: int) -> None:
        """Check the size of a measurement.

        Raises:
            BadRequestError: when it is too small or too large.
        """
        if not self.min_bytes <= num_bytes <= self.max_bytes:
            raise BadRequestError(
                f"a link is measured with {self.min_bytes} to {self.max_bytes} bytes, not {num_bytes}"
            )
        if not 1 <= round_trips <= self.max_round_trips:
            raise BadRequestError(
                f"a latency is measured with 1 to {self.max_round_trips} round trips, not {round_trips}"
            )
