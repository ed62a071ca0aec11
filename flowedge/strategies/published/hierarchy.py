"""A hierarchy of models that share a chain of tokens (pipespec.txt)."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

from flowedge.core.request import VerifierCounts
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.commands import AcceptPath, Command, Emit, Keep, Send, SendTo
from flowedge.strategies.events import (
    TARGET,
    CreditGranted,
    Layer,
    Predicted,
    Prefilled,
    Returned,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.published.chain_drafting import ChainDrafting
from flowedge.strategies.published.token_chain import TokenChain


class Hierarchy(HierarchicalStrategy):
    """Models that share a chain of tokens; a subclass says which of them works when (`proceed`).

    - M_0 is the draft node's drafter and drafts a single chain, token by token. M_1 to M_{K-1} are middle
      models on devices of their own; M_K is the target's pipeline.
    - A model without a draft token is sent the last token of its own buffer, and so continues by itself.
    - A model's prediction after the last token of a segment belongs to its buffer too, ahead of its producers
      (figure 2). The producers take the token over; a producer with another token is rolled back (lines 6, 7,
      15 and 16 of algorithm 1).
    - The draft node stores all buffers, so that a cascade of rollbacks is a single step there. A middle model
      gets a prune, which trims waiting segments, aborts the computation and needs no answer.
    - After a draw that was not in the chain, or that the drafter had not reached, the drafter begins a new
      growth with the true features; until then it continues in its own branch.

    Attributes:
        routes: to the models of the levels 1 to K.
        chain: the tokens of all models.
        drafting: the drafter's place in the chain.
        credits: for each route, the number of segments that may be sent.
        batches: for each route, the positions behind the last token of each segment in flight.
        chain_rows: most tokens of the chain, from the last drawn token on.
    """

    def __init__(self, max_draft_rows: int, models: int) -> None:
        super().__init__(max_draft_rows, max_side_routes=models - 2)
        self.routes: list[int] = []
        self.chain = TokenChain(1, 0, 0)
        self.drafting = ChainDrafting(0)
        self.credits: dict[int, int] = {}
        self.batches: dict[int, deque[int]] = {}
        self.chain_rows = max_draft_rows
        self._sent: dict[int, int] = {}  # for each route, the position behind the last sent token

    @property
    def rollbacks(self) -> tuple[int, ...]:
        return tuple(self.chain.rollbacks)

    @property
    def verifiers(self) -> tuple[VerifierCounts, ...]:
        return tuple(checks.counts for checks in self.chain.checks)

    @abstractmethod
    def proceed(self) -> list[Command]:
        """Return the commands that give tokens to the models which are to work now."""

    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._begin(event)
                return [Emit((event.token,)), *self.proceed()]
            case Layer():
                self._take_draft(event)
                return self.proceed()
            case Predicted():
                self.batches[event.route].popleft()
                return [*self._take_prediction(event), *self.proceed()]
            case Verified():
                return [*self._take_draw(event), *self.proceed()]
            case Returned():
                self.batches[event.route].popleft()
                return self.proceed()
            case CreditGranted():
                self.credits[event.route] += 1
                return self.proceed()

    def unsent(self, level: int) -> tuple[int, int]:
        """Return the range of positions that can be sent to the model of a level, from 1 on."""
        stop = self.chain.verified(level - 1)
        if level < len(self.routes):  # leave room for the prediction in the chain
            stop = min(stop, self.chain.root + self.chain_rows - 1)
        return self._sent[self.routes[level - 1]], stop

    def has_unsent(self, level: int) -> bool:
        """Return whether there is a token that can be sent to a model, be it the model's own."""
        start, stop = self.unsent(level)
        return start < stop

    def drafts(self, level: int) -> int:
        """Return the number of tokens of the model before it that can be sent to a model."""
        start, stop = self.unsent(level)
        return stop - max(start, self.chain.verified(level))

    def send(self, level: int) -> Command:
        """Return the command that sends a model all that can be sent."""
        start, stop = self.unsent(level)
        route = self.routes[level - 1]
        self.credits[route] -= 1
        self.batches[route].append(stop)
        self._sent[route] = stop
        tokens = self.chain.tokens(start, stop)
        if route != TARGET:
            return SendTo(route, start, tokens)
        # A row of a chain has its position as its index.
        parents = tuple(row - 1 if row > self.chain.root else -1 for row in range(start, stop))
        return Send(tokens, parents)

    def _begin(self, event: Prefilled) -> None:
        self.routes = [*event.routes, TARGET]
        self.chain = TokenChain(len(self.routes), event.token, event.context)
        self.drafting = ChainDrafting(event.context)
        self.credits = dict.fromkeys(self.routes, 0) | {TARGET: event.credits}
        self.batches = {route: deque() for route in self.routes}
        self._sent = dict.fromkeys(self.routes, event.context)

    def _take_draft(self, layer: Layer) -> None:
        position = self.drafting.take(layer.nodes[0])
        proposed = [token for token in layer.tokens[0].tolist() if token >= 0]
        if position is not None and position == self.chain.end - 1 and proposed:
            self.chain.append(proposed[0])

    def _take_prediction(self, event: Predicted) -> list[Command]:
        level = self.routes.index(event.route) + 1
        if not self.chain.predict(level, event.position + 1, event.tokens):
            return []
        kept = self.chain.end - 1  # the last token is the model's own and replaces a rejected token
        self.drafting.cut(kept)
        return self._keep(kept)

    def _take_draw(self, event: Verified) -> list[Command]:
        chain, accepted = self.chain, len(event.accepted)
        emitted = Emit((*chain.tokens(chain.root + 1, chain.root + accepted), event.token))
        rows = self.batches[TARGET].popleft() - chain.root
        agreed = chain.draw(accepted, event.token, rows)
        root = chain.root if agreed and self._sent[TARGET] > chain.root else None
        commands: list[Command] = [emitted, AcceptPath(event.accepted, root, ends_round=not agreed)]
        if not agreed:
            self._sent[TARGET] = chain.root
        if not agreed or self.drafting.position <= chain.root:
            self.drafting.restart(chain.root)
        return [*commands, *self._keep(chain.end if agreed else chain.root)]

    def _keep(self, end: int) -> list[Command]:
        """Have the middle models drop their rows from `end` on; the rows of drawn tokens become context."""
        commands: list[Command] = []
        for route in self.routes[:-1]:
            self._sent[route] = min(self._sent[route], end)
            commands.append(Keep(route, end, self.chain.root))
        return commands
