"""PipeSpec: a hierarchy of models, each an asynchronous producer for the next (pipespec.txt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowedge.core.tree import ROOT
from flowedge.strategies.base import (
    TARGET,
    AcceptPath,
    Command,
    CreditGranted,
    Emit,
    Grow,
    HierarchicalStrategy,
    Keep,
    Layer,
    Predicted,
    Prefilled,
    Returned,
    Send,
    SendTo,
    StrategyEvent,
    Verified,
)
from flowedge.strategies.pipespec.hierarchy import Hierarchy
from flowedge.strategies.settings import HierarchySettings


class PipeSpec(HierarchicalStrategy):
    """Algorithm 1, and where a choice had to be made:

    - M_0 is the draft node's drafter and drafts one chain, token by token, whenever it has room (lines 8, 9).
      M_1 .. M_{K-1} are middle models on devices of their own, M_K is the target's pipeline.
    - A model that has room takes whatever its producer's buffer holds by then (line 11; a lookahead of 0, as
      in section 4.4), while what it took before is still under way. It is never left without work that is
      there: with no draft it is sent the last token of its own buffer and goes on by itself.
    - Its prediction after the last token it was sent is a token of its buffer too, ahead of its producers
      (figure 2): they take it over, or are rolled back to it when they have another (lines 6, 7, 15, 16).
    - All buffers are kept by the draft node, so that a rollback cascade is one step there; to a middle model
      it is a prune, which trims what waits, aborts what is computed, and needs no answer.
    - The target verifies in segments that flow through its stages one behind the other; its draws alone are
      put out. After a draw that was not in the chain, or that the drafter had not got to, it begins a new
      growth, with the true features; until then it goes on in its own branch.
    - The paper bounds no buffer. Here the chain has at most `max_draft_rows` tokens from the last drawn on.
    """

    name: ClassVar[str] = "pipespec"

    def __init__(self, settings: HierarchySettings) -> None:
        self._settings = settings
        self._routes: list[int] = []  # of the models of levels 1 .. K, the target's last
        self._chain = Hierarchy(1, 0, 0)
        self._credits: dict[int, int] = {}
        self._sent: dict[int, int] = {}  # position of the first token that a route was not sent
        self._draft = _Drafting(0)

    @property
    def max_draft_rows(self) -> int:
        return self._settings.max_draft_rows

    @property
    def max_side_routes(self) -> int:
        return self._settings.models - 2

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
        self._chain = Hierarchy(len(self._routes), event.token, event.context)
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
        kept = self._chain.end - 1  # the last token is the model's own, in place of what was there
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
        """Have the middle models forget what lies behind `end`, and settle what is drawn by now."""
        commands: list[Command] = []
        for route in self._routes[:-1]:
            self._sent[route] = min(self._sent[route], end)
            commands.append(Keep(route, end, self._chain.root))
        return commands

    def _proceed(self) -> list[Command]:
        """Have every model work on what there is for it."""
        commands: list[Command] = []
        for level, route in enumerate(self._routes, start=1):
            stop = self._chain.verified(level - 1)
            if route != TARGET:  # what it predicts has room in the chain
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
        # Of a chain a row is its position.
        parents = tuple(row - 1 if row > self._chain.root else -1 for row in range(start, stop))
        return Send(tokens, parents)


class _Drafting:
    """How far the drafter has got: the nodes of its growth lie along the chain, one for each position."""

    def __init__(self, root: int) -> None:
        self._growth = 0
        self._next_name = ROOT
        self._first = root  # position of the growth's root
        self._names: list[int] = []  # of the nodes that were asked for, from the growth's root on
        self._asked: int | None = None  # name of the node whose child is being proposed
        self.restart(root)

    @property
    def position(self) -> int:
        """Of the first token whose child was not asked for."""
        return self._first + len(self._names)

    def restart(self, root: int) -> None:
        """A new growth."""
        self._growth += 1
        self._next_name = ROOT
        self._first, self._names, self._asked = root, [], None

    def cut(self, end: int) -> None:
        """The chain has other tokens from position `end` on."""
        del self._names[max(end - self._first, 0) :]
        if self._asked not in self._names:
            self._asked = None

    def has_work(self, chain: Hierarchy, max_rows: int) -> bool:
        """Whether the child of the token at `position` is to be proposed now.

        Tokens of other models are asked for one by one even where they are not the last of the chain: the
        drafter has to know them.
        """
        if self._asked is not None or self.position >= chain.end:
            return False
        return self.position < chain.end - 1 or chain.rows < max_rows

    def ask(self, tokens: tuple[int, ...]) -> Grow:
        """The command that has the child of the token at `position` proposed."""
        parent = self._names[-1] if self._names else -1
        name = self._asked = self._next_name
        self._next_name += 1
        self._names.append(name)
        return Grow(self._growth, (name,), (parent,), tokens, 1)

    def take(self, name: int) -> int | None:
        """Position of the token whose child has been proposed; None when it is not in the chain any more."""
        if name != self._asked:
            return None
        self._asked = None
        return self._first + len(self._names) - 1
