"""The tokens/s of a request, or of several: a moving mean."""

from __future__ import annotations

import math

_WINDOW = 16.0  # tokens over which the speed of a request is a moving mean


class Speed:
    """A moving mean of tokens/s; until the first tokens come out it is a guess."""

    def __init__(self, guess: float, now: float = 0.0, *, window: float = _WINDOW) -> None:
        """window: tokens over which it is a mean."""
        self._guess, self._window = guess, window
        self._tokens = self._seconds = 0.0
        self._counted_at = now

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else self._guess

    def count(self, tokens: int, now: float) -> None:
        """Take in tokens that came out now."""
        self.add(tokens, now - self._counted_at)
        self._counted_at = now

    def add(self, tokens: int, seconds: float) -> None:
        """Take in tokens that took so long."""
        fade = math.exp(-tokens / self._window)
        self._tokens = fade * self._tokens + tokens
        self._seconds = fade * self._seconds + seconds

    def restart(self) -> None:
        """Forget everything but the last speed, which is the guess from now on."""
        self._guess, self._tokens, self._seconds = self.tokens_per_s, 0.0, 0.0
