"""PipeSpec: a hierarchy of models, each an asynchronous producer for the next (pipespec.txt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.core.tree import ROOT
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.commands import AcceptPath, Command, Emit, Grow, Keep, Send, SendTo
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
from flowedge.strategies.published.naive_pp import NaivePP
from flowedge.strategies.published.token_chain import TokenChain
from flowedge.strategies.settings import HierarchySettings, LookaheadSettings, TreeSettings


class PipeSpec(HierarchicalStrategy):
    """Algorithm 1, and the choices that the paper leaves:

    - M_0 is the draft node's drafter and drafts a single chain, token by token, whenever there is room (lines
      8 and 9). M_1 to M_{K-1} are middle models on devices of their own; M_K is the target's pipeline.
    - A model with a credit takes all tokens that its producer's buffer holds (line 11; a lookahead of 0, as
      in section 4.4), while its earlier segments are still in flight. A model without a draft token is sent
      the last token of its own buffer, and so continues by itself.
    - A model's prediction after the last token of a segment belongs to its buffer too, ahead of its producers
      (figure 2). The producers take the token over; a producer with another token is rolled back (lines 6, 7,
      15 and 16).
    - The draft node stores all buffers, so that a cascade of rollbacks is a single step there. A middle model
      gets a prune, which trims waiting segments, aborts the computation and needs no answer.
    - The target verifies in segments that flow through its stages one behind the other, and only its draws
      are put out. After a draw that was not in the chain, or that the drafter had not reached, the drafter
      begins a new growth with the true features; until then it continues in its own branch.
    - The paper bounds no buffer. Here the chain has at most `max_draft_rows` tokens from the last drawn token
      on.
    """

    name: ClassVar[str] = "pipespec"

    def __init__(self, settings: HierarchySettings) -> None:
        super().__init__(settings.max_draft_rows, max_side_routes=settings.models - 2)
        self._settings = settings
        self._routes: list[int] = []  # to the models of the levels 1 to K
        self._chain = TokenChain(1, 0, 0)
        self._credits: dict[int, int] = {}
        self._sent: dict[int, int] = {}  # for each route, the position behind the last sent token
        self._draft = _Drafting(0)

    @property
    def rollbacks(self) -> tuple[int, ...]:
        return tuple(self._chain.rollbacks)

    def handle(self, event: StrategyEvent | Predicted) -> Sequence[Command]:
        match event:
            case Prefilled():
                self._begin(event)
                return [Emit((event.token,)), *self._proceed()]
            case Layer():
                self._take_draft(event)
                return self._proceed()
            case Predicted():
                return [*self._take_prediction(event), *self._proceed()]
            case Verified():
                return [*self._take_draw(event), *self._proceed()]
            case Returned():
                return []
            case CreditGranted():
                self._credits[event.route] += 1
                return self._proceed()

    def _begin(self, event: Prefilled) -> None:
        self._routes = [*event.routes, TARGET]
        self._chain = TokenChain(len(self._routes), event.token, event.context)
        self._credits = dict.fromkeys(self._routes, 0) | {TARGET: event.credits}
        self._sent = dict.fromkeys(self._routes, event.context)
        self._draft = _Drafting(event.context)

    def _take_draft(self, layer: Layer) -> None:
        position = self._draft.take(layer.nodes[0])
        proposed = [token for token in layer.tokens[0].tolist() if token >= 0]
        if position is not None and position == self._chain.end - 1 and proposed:
            self._chain.append(proposed[0])

    def _take_prediction(self, event: Predicted) -> list[Command]:
        level = self._routes.index(event.route) + 1
        if not self._chain.predict(level, event.position + 1, event.tokens):
            return []
        kept = self._chain.end - 1  # the last token is the model's own and replaces a rejected token
        self._draft.cut(kept)
        return self._keep(kept)

    def _take_draw(self, event: Verified) -> list[Command]:
        chain, accepted = self._chain, len(event.accepted)
        emitted = Emit((*chain.tokens(chain.root + 1, chain.root + accepted), event.token))
        agreed = chain.draw(accepted, event.token)
        root = chain.root if agreed and self._sent[TARGET] > chain.root else None
        commands: list[Command] = [emitted, AcceptPath(event.accepted, root, ends_round=not agreed)]
        if not agreed:
            self._sent[TARGET] = chain.root
        if not agreed or self._draft.position <= chain.root:
            self._draft.restart(chain.root)
        return [*commands, *self._keep(chain.end if agreed else chain.root)]

    def _keep(self, end: int) -> list[Command]:
        """Have the middle models drop their rows from `end` on; the rows of drawn tokens become context."""
        commands: list[Command] = []
        for route in self._routes[:-1]:
            self._sent[route] = min(self._sent[route], end)
            commands.append(Keep(route, end, self._chain.root))
        return commands

    def _proceed(self) -> list[Command]:
        """Give every model the tokens that it can work on."""
        commands: list[Command] = []
        for level, route in enumerate(self._routes, start=1):
            stop = self._chain.verified(level - 1)
            if route != TARGET:  # leave room for the prediction in the chain
                stop = min(stop, self._chain.root + self._settings.max_draft_rows - 1)
            if self._credits[route] and self._sent[route] < stop:
                commands.append(self._send(route, self._sent[route], stop))
        if self._draft.has_work(self._chain, self._settings.max_draft_rows):
            position = self._draft.position
            commands.append(self._draft.ask(self._chain.tokens(position, position + 1)))
        return commands

    def _send(self, route: int, start: int, stop: int) -> Command:
        self._credits[route] -= 1
        self._sent[route] = stop
        tokens = self._chain.tokens(start, stop)
        if route != TARGET:
            return SendTo(route, start, tokens)
        # A row of a chain has its position as its index.
        parents = tuple(row - 1 if row > self._chain.root else -1 for row in range(start, stop))
        return Send(tokens, parents)


class _Drafting:
    """The drafter's place in the chain: its growth has a node for each position of the chain."""

    def __init__(self, root: int) -> None:
        self._growth = 0
        self._next_name = ROOT
        self._first = root  # position of the growth's root
        self._names: list[int] = []  # of the nodes with a Grow command, from the growth's root on
        self._asked: int | None = None  # node whose child is being computed
        self.restart(root)

    @property
    def position(self) -> int:
        """Position of the first token without a Grow command."""
        return self._first + len(self._names)

    def restart(self, root: int) -> None:
        """Begin a new growth with the token at position `root`."""
        self._growth += 1
        self._next_name = ROOT
        self._first, self._names, self._asked = root, [], None

    def cut(self, end: int) -> None:
        """Drop the nodes from position `end` on, because the chain has other tokens there."""
        del self._names[max(end - self._first, 0) :]
        if self._asked not in self._names:
            self._asked = None

    def has_work(self, chain: TokenChain, max_rows: int) -> bool:
        """Return whether the drafter is to compute the child of the token at `position` now.

        Tokens of other models go through the drafter one by one too, because its cache needs them.
        """
        if self._asked is not None or self.position >= chain.end:
            return False
        return self.position < chain.end - 1 or chain.rows < max_rows

    def ask(self, tokens: tuple[int, ...]) -> Grow:
        """Return the command that computes the child of the token at `position`."""
        parent = self._names[-1] if self._names else -1
        name = self._asked = self._next_name
        self._next_name += 1
        self._names.append(name)
        return Grow(self._growth, (name,), (parent,), tokens, 1)

    def take(self, name: int) -> int | None:
        """Return the position of the token whose child was computed, None if the token has left the chain."""
        if name != self._asked:
            return None
        self._asked = None
        return self._first + len(self._names) - 1


class PipeSpecSync(NaivePP):
    """Drafts a chain of `lookahead` tokens, verifies it in one segment, and drafts the next chain.

    A chain is a tree with one child a node. Nothing is drafted while a chain is in flight.
    """

    name: ClassVar[str] = "pipespec_sync"

    def __init__(self, settings: LookaheadSettings) -> None:
        rows = settings.lookahead + 1  # with the root
        super().__init__(TreeSettings(tree_nodes=rows, depth=settings.lookahead, top_k=1, segment_rows=rows))

    def segments(self, stages: int) -> int:  # noqa: ARG002
        return 1
