"""Profile of a link: rate and latency."""

from __future__ import annotations

from pydantic import Field

from flowedge.planning.profile.model import SourcedDocument


class LinkProfile(SourcedDocument):
    """A link between two devices, in one direction.

    Attributes:
        mbps: rate in 1e6 bits per second.
        latency_ms: time from sending the last bit to its arrival; with the software on both ends where the
            devices' profiles do not have its times (see AddedTimes).
        jitter_ms: upper bound of a delay added to the latency, uniform from 0.
        seed: of the jitter.
    """

    mbps: float = Field(gt=0)
    latency_ms: float = Field(ge=0)
    jitter_ms: float = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0)

    @property
    def bytes_per_s(self) -> float:
        return self.mbps * 1e6 / 8
