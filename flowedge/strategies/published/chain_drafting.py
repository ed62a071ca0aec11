"""The drafter's work on a chain of tokens."""

from __future__ import annotations

from flowedge.core.tree import ROOT
from flowedge.strategies.commands import Grow
from flowedge.strategies.published.token_chain import TokenChain


class ChainDrafting:
    """The drafter's place in the chain: its growth has a node for each position of the chain."""

    def __init__(self, root: int) -> None:
        """Begin with the token at position `root`."""
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

    @property
    def drafts(self) -> bool:
        """Whether the child of a token of the chain is being computed."""
        return self._asked is not None

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
        if self.drafts or self.position >= chain.end:
            return False
        return self.position < chain.end - 1 or chain.rows < max_rows

    def ask(self, chain: TokenChain) -> Grow:
        """Return the command that computes the child of the token at `position`."""
        tokens = chain.tokens(self.position, self.position + 1)
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
