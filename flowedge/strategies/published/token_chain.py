"""The chain of tokens that the models of a hierarchy share."""

from __future__ import annotations

from collections.abc import Sequence


class TokenChain:
    """The output buffers O_0 to O_K of a hierarchy of models (pipespec, Algorithm 1).

    A model that rejects a token rolls all earlier models back to its own buffer. So each buffer is a prefix
    of the buffer before it, and all buffers are one sequence of tokens with the position where each buffer
    ends. O_K has the drawn tokens. Positions are absolute; the prompt's tokens are not stored. The drafter is
    level 0, the target level K.

    Attributes:
        root: position of the last drawn token.
        rollbacks: for each of the levels 1 to K, how often it rolled all earlier models back.
    """

    def __init__(self, levels: int, token: int, position: int) -> None:
        """Begin at the first drawn token; `levels` is K, the number of models below the target."""
        self.root = position
        self.rollbacks = [0] * levels
        self._tokens = [token]
        self._start = position
        self._ends = [position + 1] * levels

    @property
    def end(self) -> int:
        """Position behind the last token of the chain, which is the end of O_0."""
        return self._ends[0]

    @property
    def rows(self) -> int:
        """Number of tokens from the root on, the root included."""
        return self.end - self.root

    def verified(self, level: int) -> int:
        """Return the position behind the last token of O_level."""
        return self._ends[level]

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the tokens at the positions from `start` to before `stop`."""
        return tuple(self._tokens[start - self._start : stop - self._start])

    def append(self, token: int) -> None:
        self._tokens.append(token)
        self._ends[0] += 1

    def predict(self, level: int, position: int, tokens: Sequence[int]) -> bool:
        """Take in the tokens that a model below the target predicts for the positions from `position` on.

        The model's buffer grows as far as its tokens agree with the chain. At the first other token the chain
        is cut and continues with the model's token.

        Returns:
            Whether the chain was cut.
        """
        for place, token in enumerate(tokens, start=position):
            if place < self._ends[level]:  # a later model has extended the buffer
                continue
            cut = not self._put(level, place, token)
            self._extend(level, place + 1)
            if cut:
                return True
        return False

    def draw(self, accepted: int, token: int) -> bool:
        """Take in a draw of the target, whose token becomes the root.

        Args:
            accepted: number of accepted tokens, the former root included.
            token: the token drawn after them.

        Returns:
            Whether the chain had the token; otherwise the chain begins anew with it.
        """
        self.root += accepted
        before = self.end
        agreed = self._put(len(self._ends), self.root, token) and self.root < before
        self._extend(len(self._ends) - 1, self.root + 1)
        return agreed

    def _put(self, level: int, position: int, token: int) -> bool:
        """Set the token at a position in the chain or at its end; returns False if it replaces another."""
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

    def _extend(self, level: int, end: int) -> None:
        """Extend the buffers of the levels up to `level` to at least `end`."""
        for below in range(level + 1):
            self._ends[below] = max(self._ends[below], end)
