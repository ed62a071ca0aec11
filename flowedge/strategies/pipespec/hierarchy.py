"""The one chain of tokens that the models of a hierarchy share, and how far each has got with it."""

from __future__ import annotations

from collections.abc import Sequence


class Hierarchy:
    """The output buffers O_0 .. O_{K-1} of the models below the target, and O_K, what is drawn.

    Each buffer is a prefix of the one before it, for a model that rejects a token rolls all earlier ones back
    to its own; so they are one sequence of tokens, and the place where each buffer ends. Places are absolute
    positions, of which the prompt's are not held. The first model is level 0, the target level K.

    Attributes:
        root: position of the last drawn token, at which O_K ends.
        rollbacks: how often each of the levels 1 .. K made all before it roll back.
    """

    def __init__(self, levels: int, token: int, position: int) -> None:
        """levels: models below the target; token: the first drawn one."""
        self.root = position
        self.rollbacks = [0] * levels
        self._tokens = [token]
        self._start = position
        self._ends = [position + 1] * levels

    @property
    def end(self) -> int:
        """Where the chain ends: that of O_0, the longest buffer."""
        return self._ends[0]

    @property
    def rows(self) -> int:
        """Tokens from the root on, itself included."""
        return self.end - self.root

    def verified(self, level: int) -> int:
        """Where O_level ends."""
        return self._ends[level]

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens at the positions start .. stop."""
        return tuple(self._tokens[start - self._start : stop - self._start])

    def append(self, token: int) -> None:
        """The first model has drafted a token."""
        self._tokens.append(token)
        self._ends[0] += 1

    def predict(self, level: int, position: int, tokens: Sequence[int]) -> bool:
        """What a model below the target has for the positions from `position` on.

        As far as it agrees with the chain, its buffer grows; where it does not, the chain is cut, and goes on
        with its own token. Whether the chain was cut is returned.
        """
        for place, token in enumerate(tokens, start=position):
            if place < self._ends[level]:  # its buffer was put forward by a later model
                continue
            cut = not self._settle(level, place, token)
            self._reach(level, place + 1)
            if cut:
                return True
        return False

    def draw(self, accepted: int, token: int) -> bool:
        """The target has accepted so many tokens, the root among them, and drawn one after them.

        It becomes the root. Whether it was in the chain is returned; if not, the chain begins anew.
        """
        self.root += accepted
        before = self.end
        agreed = self._settle(len(self._ends), self.root, token) and self.root < before
        self._reach(len(self._ends) - 1, self.root + 1)
        return agreed

    def _settle(self, level: int, position: int, token: int) -> bool:
        """Have this token at a position of the chain, or at its end; False when another was there."""
        if position < self.end:
            if self._tokens[position - self._start] == token:
                return True
            del self._tokens[position - self._start :]
            self._ends = [min(end, position) for end in self._ends]
            self.rollbacks[level - 1] += 1
            self.append(token)
            return False
        self.append(token)
        return True

    def _reach(self, level: int, end: int) -> None:
        """The buffers up to a level's extend at least to `end`."""
        for below in range(level + 1):
            self._ends[below] = max(self._ends[below], end)
