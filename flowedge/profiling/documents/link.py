"""What a link carries."""

from __future__ import annotations

from pydantic import Field

from flowedge.profiling.documents.document import YamlDocument


class LinkProfile(YamlDocument):
    """One link between two devices, each direction on its own.

    Attributes:
        mbps: rate in 1e6 bits a second.
        latency_ms: time from the last bit's leaving to its arrival, with the software on both ends.
        jitter_ms: added to it, uniform between 0 and this; seed: of the jitter.
    """

    title: str
    source: str
    mbps: float = Field(gt=0)
    latency_ms: float = Field(ge=0)
    jitter_ms: float = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0)

    @property
    def bytes_per_s(self) -> float:
        return self.mbps * 1e6 / 8
