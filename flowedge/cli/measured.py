"""What a draft node measured for one request, in the form that reports have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowedge.core.errors import ProtocolError


@dataclass(frozen=True)
class DeviceWork:
    """One device's part in a request; `use` is the share of the request's time that it computed."""

    device: str
    use: float
    rows_computed: int
    rows_trimmed: int  # dropped before they were computed
    rows_wasted: int  # computed, then dropped
    segments: int
    aborted: int  # computations stopped between layers
    busy_s: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> DeviceWork:
        report = content["report"]
        counts = ("rows_computed", "rows_trimmed", "rows_wasted", "segments", "aborted")
        return cls(
            device=str(report["device"]),
            use=float(content["use"]),
            busy_s=float(report["busy_s"]),
            **{name: int(report[name]) for name in counts},
        )


@dataclass(frozen=True)
class Measured:
    """Times in seconds, bytes by sending device.

    Attributes:
        itl_s: time between tokens, one fewer than tokens.
        accepted_per_segment: tokens put out after each returned segment that held live rows.
        accepted_per_round: tokens put out in each draft round; empty for autoregressive decoding.
        middles: of a hierarchy, the devices of middle models; rollbacks: how often each verifier had those
            before it roll back, the target last.
    """

    ttft_s: float
    decode_s: float
    total_s: float
    tokens_per_s: float
    itl_s: list[float]
    accepted_per_segment: list[int]
    accepted_per_round: list[int]
    segments: int
    empty_segments: int
    prunes: int
    draft_layers: int
    draft_rows_sent: int
    draft_node: DeviceWork
    stages: list[DeviceWork]
    link_bytes: dict[str, int]
    middles: list[DeviceWork]
    rollbacks: list[int]

    @property
    def rounds(self) -> int:
        return len(self.accepted_per_round)

    @classmethod
    def of(cls, statistics: Mapping[str, Any]) -> Measured:
        """Reads what the client got; ProtocolError when something is missing or of the wrong kind."""
        try:
            counters = statistics["counters"]
            counts = ("segments", "empty_segments", "prunes", "draft_layers", "draft_rows_sent")
            times = ("ttft_s", "decode_s", "total_s", "tokens_per_s")
            return cls(
                **{name: float(statistics[name]) for name in times},  # type: ignore[arg-type]
                **{name: int(counters[name]) for name in counts},
                itl_s=[float(seconds) for seconds in statistics["itl_s"]],
                accepted_per_segment=[int(count) for count in counters["accepted_per_segment"]],
                accepted_per_round=[int(count) for count in counters["accepted_per_round"]],
                draft_node=DeviceWork.of(statistics["draft_node"]),
                stages=[DeviceWork.of(stage) for stage in statistics["stages"]],
                middles=[DeviceWork.of(middle) for middle in statistics["middles"]],
                rollbacks=[int(count) for count in counters["rollbacks"]],
                link_bytes={str(link): int(sent) for link, sent in statistics["link_bytes"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the draft node's statistics cannot be read: {error!r}") from error


def mean(values: list[int] | list[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
