"""Runs a strategy against a script of events, in place of a draft node."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from flowedge.core.messages import CONTEXT
from flowedge.protocol.pipeline_ledger import PipelineTrip
from flowedge.protocol.row_sequence import RowSequence
from flowedge.strategies.base import Strategy
from flowedge.strategies.commands import AcceptPath, Append, Emit, Grow, Send, Withdraw
from flowedge.strategies.events import CreditGranted, Layer, Prefilled, Returned, StrategyEvent, Verified


class Script:
    """Holds the sequence, the credits and the segments in flight, and checks every command against them.

    Attributes:
        sends: all segments so far.
        in_flight: rows of each segment in flight; segments that are verified together share a list.
        grow: the layer that is asked for, if any.
        emitted: all tokens put out.
        appended: tokens that were sent as committed rows.
        now: time of the next events.
    """

    def __init__(
        self,
        strategy: Strategy,
        context: int = 5,
        token: int = 0,
        granted: int = 1,
        stages: int = 1,
        trips: tuple[PipelineTrip, ...] = (),
        verify_s: float = 0.0,
        together: bool = False,
    ) -> None:
        """together: whether only `step` asks for its part of a step, and not each event."""
        self.strategy = strategy
        self._together = together
        self.sequence = RowSequence("s")
        self.sequence.commit([0] * context)
        self.credits = granted
        self.sends: list[Send] = []
        self.prunes: list[AcceptPath] = []
        self.in_flight: list[list[int]] = []
        self.grow: Grow | None = None
        self.emitted: list[int] = []
        self.appended: list[int] = []
        self.commands: list[object] = []
        self.now = 0.0
        strategy.opened()
        self._event(Prefilled(context, token, granted, stages, trips, verify_s=verify_s))

    def credit(self) -> list[object]:
        self.credits += 1
        return self._event(CreditGranted())

    def layer(
        self, tokens: Items[Items[int]], probs: Items[Items[float]], seconds: float = 0.0
    ) -> list[object]:
        """Answer the Grow that is asked for."""
        grow, self.grow = self.grow, None
        assert grow is not None, "no layer is asked for"
        assert len(tokens) == len(grow.nodes)
        with np.errstate(divide="ignore"):
            log_probs = np.log(np.array(probs))
        alone = grow.lookup_alone
        return self._event(
            Layer(grow.growth, grow.nodes, np.array(tokens), log_probs, seconds, lookup_alone=alone)
        )

    def verified(
        self, accepted: Items[int], token: int, trip: PipelineTrip | None = None, verify_s: float = 0.0
    ) -> list[object]:
        """The oldest segment in flight has come back and these of its rows are on the true path."""
        assert self.strategy.takes_results, "a lock-step method is in the middle of a turn"
        rows = self.in_flight.pop(0)
        assert set(accepted) <= set(rows)
        return self._event(Verified(tuple(accepted), token, trip, rows=len(rows), verify_s=verify_s))

    def returned(self) -> list[object]:
        """The oldest segment in flight has come back and none of its rows lives."""
        assert self.in_flight.pop(0) == []
        return self._event(Returned())

    def step(self) -> list[object]:
        """The session is asked for its part of a step."""
        return self._carry_out(list(self.strategy.send_step()))

    def row_of(self, parent: int, token: int) -> int | None:
        """The draft row that carries `token` below the row `parent`."""
        offsets = np.flatnonzero((self.sequence.parents == parent) & (self.sequence.tokens == token))
        return int(offsets[0]) + self.sequence.context if len(offsets) else None

    def _event(self, event: StrategyEvent) -> list[object]:
        self.strategy.now = self.now
        commands = self._carry_out(list(self.strategy.handle(event)), event)
        while not self._together and (more := self.step()):
            commands += more
        self.commands = commands
        return commands

    def _carry_out(self, commands: list[Any], event: StrategyEvent | None = None) -> list[object]:
        for place, command in enumerate(commands):
            match command:
                case Emit():
                    assert place == 0, "Emit comes first"
                    self.emitted += command.tokens
                case Grow():
                    assert self.grow is None or self.grow.growth < command.growth
                    self.grow = command
                case Withdraw():
                    self.grow = None
                case Append():
                    self._append(command)
                case Send():
                    self._send(command)
                case AcceptPath():
                    self._prune(command, event)
        return commands

    def _send(self, send: Send) -> None:
        assert self.credits > 0, "a segment without a credit"
        self.credits -= 1
        assert send.tokens, "a segment without rows"
        first = self.sequence.append(send.tokens, send.parents)
        rows = list(range(first, self.sequence.length))
        if self.sends and self.sends[-1].more:
            self.in_flight[-1] += rows
        else:
            self.in_flight.append(rows)
        self.sends.append(send)
        assert self.sequence.length - self.sequence.context <= self.strategy.max_draft_rows
        roots = [row for row, parent in enumerate(self.sequence.parents) if parent == CONTEXT]
        assert roots == [0], "there is one root, and it is the first draft row"

    def _append(self, append: Append) -> None:
        assert self.credits > 0, "a segment without a credit"
        assert self.sequence.length == self.sequence.context, "a committed row behind draft rows"
        self.credits -= 1
        self.sequence.commit([append.token])
        self.in_flight.append([self.sequence.context - 1])
        self.appended.append(append.token)

    def _prune(self, prune: AcceptPath, event: StrategyEvent | None) -> None:
        assert isinstance(event, Verified)
        assert prune.accepted == event.accepted
        known = self.row_of(event.accepted[-1], event.token)
        assert prune.root == known
        assert not (prune.ends_round and known is not None), "a round ended though its token was sent"
        message = self.sequence.prune(prune.accepted, prune.root)
        new = {old: message.context + i for i, old in enumerate(message.retained.tolist())}
        self.in_flight = [[new[row] for row in rows if row in new] for rows in self.in_flight]
        self.prunes.append(prune)


def ask_together(*sessions: Script) -> list[int]:
    """Ask all sessions for a segment until none gives one; return how many segments each has sent."""
    while sum(bool(session.step()) for session in sessions):
        pass
    return [len(session.sends) for session in sessions]
