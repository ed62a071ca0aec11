"""The chain of tokens that the models of a hierarchy share."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.core.request import VerifierCounts


class TokenChain:
    """The output buffers O_0 to O_K of a hierarchy of models (pipespec, Algorithm 1).

    A model that rejects a token rolls all earlier models back to its own buffer. So each buffer is a prefix
    of the buffer before it, and all buffers are one sequence of tokens with the position where each buffer
    ends. O_K has the drawn tokens. Positions are absolute; the prompt's tokens are not stored. The drafter is
    level 0, the target level K.

    Attributes:
        root: position of the last drawn token.
        rollbacks: for each of the levels 1 to K, how often it rolled all earlier models back.
        checks: for each of the levels 1 to K, what it made of the tokens that it was sent.
    """

    def __init__(self, levels: int, token: int, position: int) -> None:
        """Begin at the first drawn token; `levels` is K, the number of models below the target."""
        self.root = position
        self.rollbacks = [0] * levels
        self.checks = [DraftChecks() for _ in range(levels)]
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
        return self._ends[level] if level < len(self._ends) else self.root + 1

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
        start, stop = max(position, self._ends[level]), position + len(tokens)
        if start >= stop:  # a later model has extended the buffer
            return False
        checks = self.checks[level - 1]
        checks.begin(stop - start - 1)
        for place in range(start, stop):
            known = place < self.end
            cut = not self._put(level, place, tokens[place - position])
            checks.add(place - start, survived=not cut if known else None)
            self._extend(level, place + 1)
            if cut:
                return True
        return False

    def draw(self, accepted: int, token: int, rows: int) -> bool:
        """Take in a draw of the target, whose token becomes the root.

        Args:
            accepted: number of accepted tokens, the former root included.
            token: the token drawn after them.
            rows: number of tokens that were verified, the former root included.

        Returns:
            Whether the chain had the token; otherwise the chain begins anew with it.
        """
        checks = self.checks[-1]
        checks.begin(rows - 1)
        for place in range(accepted - 1):
            checks.add(place, survived=True)
        self.root += accepted
        before = self.end
        agreed = self._put(len(self._ends), self.root, token) and self.root < before
        checks.add(accepted - 1, survived=agreed if self.root < before else None)
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


class DraftChecks:
    """Counts what becomes of the draft tokens that one model verifies; see VerifierCounts."""

    def __init__(self) -> None:
        self._steps = self._verifying = self._drafted = self._tokens = 0
        self._compared: list[int] = []
        self._survived: list[int] = []

    def begin(self, drafted: int) -> None:
        """Count a step with this many draft tokens."""
        self._steps += 1
        self._verifying += drafted > 0
        self._drafted += drafted

    def add(self, place: int, *, survived: bool | None) -> None:
        """Count a token of the model's own at a place of the step, 0 the first.

        Args:
            survived: whether the draft token at this place is the same; None if there was none.
        """
        self._tokens += 1
        if survived is not None:
            missing = place + 1 - len(self._compared)
            self._compared += [0] * missing
            self._survived += [0] * missing
            self._compared[place] += 1
            self._survived[place] += survived

    @property
    def counts(self) -> VerifierCounts:
        """The counts so far."""
        return VerifierCounts(
            self._steps,
            self._verifying,
            self._drafted,
            self._tokens,
            tuple(self._compared),
            tuple(self._survived),
        )
