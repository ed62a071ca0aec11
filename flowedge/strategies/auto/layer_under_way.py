"""The layer of the draft tree that the draft node has been asked for."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.strategies.commands import Grow


@dataclass(slots=True)
class LayerUnderWay:
    """What is asked of the draft node, and when it is expected to have computed that.

    Attributes:
        grow: the command; None where no layer is asked for.
        tokens: expected among the nodes that are drafted.
        until: when the draft node is expected to be done, in seconds of the events' clock.
    """

    grow: Grow | None = None
    tokens: float = 0.0
    until: float = 0.0

    def begin(self, grow: Grow | None, tokens: float, now: float, seconds: float) -> None:
        """Note what has been asked for now, by a forward that takes so long."""
        self.grow, self.tokens = grow, tokens
        self.until = max(now, self.until) + seconds

    def end(self, now: float) -> None:
        """Note that the layer has come."""
        self.grow, self.until = None, now

    def left(self, now: float) -> float:
        """Return the seconds until the layer is expected; 0 or less where it is late or none is asked for."""
        return 0.0 if self.grow is None else self.until - now
