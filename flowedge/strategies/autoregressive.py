"""Autoregressive decoding: one token a pass through the pipeline, nothing drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.base import (
    Append,
    Command,
    CreditGranted,
    Emit,
    Prefilled,
    Strategy,
    StrategyEvent,
    Verified,
)


class Autoregressive(Strategy):
    """Sends each drawn token as a committed row and waits for the next draw."""

    name: ClassVar[str] = "autoregressive"
    needs_drafter: ClassVar[bool] = False

    def __init__(self) -> None:
        self._credits = 0
        self._waiting: int | None = None

    @property
    def max_draft_rows(self) -> int:
        return 0

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                self._waiting = event.token
                return [Emit((event.token,)), *self._append()]
            case Verified():
                self._waiting = event.token
                return [Emit((event.token,)), *self._append()]
            case CreditGranted():
                self._credits += 1
                return self._append()
            case _:
                raise TypeError(f"{self.name} does not draft, but got {event}")

    def _append(self) -> list[Command]:
        if self._waiting is None or self._credits == 0:
            return []
        token, self._waiting = self._waiting, None
        self._credits -= 1
        return [Append(token)]
