"""The answers of a load as they come: when each was asked, began and gave its tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from flowedge_testbed.load.arrivals import Arrival


@dataclass
class LoadAnswer:
    """One request and what came of it; times in seconds since the load began.

    Attributes:
        token_s: when each token came out; tokens of one event have the same time.
        ended_s: when the answer was complete for its client; None while it is not.
        admitted_s: when there was room for the request, if it waited for room; None if it did not.
        refused: whether there was no room for it, and it was told to try later.
    """

    arrival: Arrival
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    admitted_s: float | None = None
    refused: bool = False

    def take(self, tokens: tuple[int, ...], now: float) -> None:
        """Add tokens that came out together."""
        self.tokens.extend(tokens)
        self.token_s.extend([now] * len(tokens))

    @property
    def digest(self) -> str:
        """A digest of the tokens, by which the outputs of methods are compared."""
        return hashlib.sha256(",".join(map(str, self.tokens)).encode()).hexdigest()[:16]
