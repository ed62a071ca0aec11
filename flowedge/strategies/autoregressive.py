"""Autoregressive decoding: one token a pass through the pipeline, without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import Append, Command, Emit
from flowedge.strategies.events import CreditGranted, Prefilled, StrategyEvent, Verified


class Autoregressive(Strategy):
    """Sends each drawn token as a committed row and waits for the next draw."""

    name: ClassVar[str] = "autoregressive"
    needs_drafter: ClassVar[bool] = False
    computed_alone: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(max_draft_rows=0)
        self._credits = 0
        self._unsent_token: int | None = None

    def handle(self, event: StrategyEvent) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._credits = event.credits
                return self._take(event.token)
            case Verified():
                return self._take(event.token)
            case CreditGranted():
                self._credits += 1
                return self._append()
            case _:
                raise TypeError(f"{self.name} does not draft, but got {event}")

    def _take(self, token: int) -> list[Command]:
        self._unsent_token = token
        return [Emit((token,)), *self._append()]

    def _append(self) -> list[Command]:
        if self._unsent_token is None or self._credits == 0:
            return []
        token, self._unsent_token = self._unsent_token, None
        self._credits -= 1
        return [Append(token)]
