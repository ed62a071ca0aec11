"""How an agent is watched and stopped."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError

MAX_DRAIN_S = 3600.0


@dataclass(frozen=True)
class OperationsSettings:
    """Health, metrics and the end of one agent; times in seconds."""

    drain_s: float = 20.0  # what is running has this long to end when the agent is told to stop
    metrics_host: str = "127.0.0.1"  # address of the Prometheus metrics, which anyone who reaches it may read
    metrics_port: int | None = 0  # their port; 0 takes a free one and says so in the log, none has no metrics
    reflection: bool = False  # gRPC server reflection, for grpcurl and its like

    def __post_init__(self) -> None:
        """BadRequestError for what makes no sense."""
        if not 0 <= self.drain_s <= MAX_DRAIN_S:
            raise BadRequestError(f"drain_s is {self.drain_s:g}; it must be 0 to {MAX_DRAIN_S:g} seconds")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise BadRequestError(f"metrics_port is {self.metrics_port}; it must be 0 to 65535, or none")
