"""The tokens/s of a request, and whether drafting makes them more than plain decoding does."""

from __future__ import annotations

import math

_WINDOW = 16.0  # tokens over which the speed is a moving mean
_TRIAL_TOKENS = 16  # drafted before drafting is judged
_SHORT_TRIAL_TOKENS = 8  # likewise where it is much slower than plain decoding, and for plain decoding itself
_MUCH_SLOWER = 0.75
_MUCH_FASTER = 1.25  # than the predicted speed of plain decoding, which need not be measured then
_FIRST_PAUSE = 128  # plain tokens before drafting is tried again
_LONGEST_PAUSE = 1024


class Speed:
    """A moving mean of tokens/s; until the first tokens come out it is a guess."""

    def __init__(self, guess: float, now: float) -> None:
        self._guess = guess
        self._tokens = self._seconds = 0.0
        self._counted_at = now

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else self._guess

    def count(self, tokens: int, now: float) -> None:
        """Take in tokens that came out now."""
        fade = math.exp(-tokens / _WINDOW)
        self._tokens = fade * self._tokens + tokens
        self._seconds = fade * self._seconds + now - self._counted_at
        self._counted_at = now

    def restart(self) -> None:
        """Forget everything but the last speed, which is the guess from now on."""
        self._guess, self._tokens, self._seconds = self.tokens_per_s, 0.0, 0.0


class DraftingTrial:
    """Whether to draft: as long as it is predicted to be faster than plain decoding, and measured to be.

    Where drafting was slower, it is tried again after a pause, which doubles each time. In the first session
    the speed of plain decoding is predicted, from segments beside which something was drafted. Devices that
    share a processor are slower then, so where the prediction decides, plain decoding is measured. It is
    measured in any case when the second session begins.

    Attributes:
        drafts: whether to draft now.
    """

    def __init__(self) -> None:
        self.drafts = True
        self._begun = False
        self._tokens = 0  # since drafting was begun or stopped
        self._measured_tokens = 0  # likewise, of this session
        self._pause = _FIRST_PAUSE
        self._plain: float | None = None  # measured tokens/s of plain decoding
        self._drafted = 0.0  # measured tokens/s of drafting

    def begin(self) -> None:
        """Begin another session."""
        if self._begun and self._plain is None:
            self.drafts, self._tokens = False, 0
        self._begun = True
        self._measured_tokens = 0

    def decide(self, tokens: int, predicted: float, measured: float, plain: float) -> bool:
        """Take in drawn tokens, and return whether drafting has begun or stopped.

        Args:
            predicted: tokens/s of drafting, if all goes well.
            measured: tokens/s since drafting was begun or stopped, or since the session began.
            plain: predicted tokens/s of plain decoding.
        """
        self._tokens += tokens
        self._measured_tokens += tokens
        before = self.drafts
        if self.drafts:
            self.drafts = self._goes_on(predicted, measured, plain)
        elif self._measured_tokens >= _SHORT_TRIAL_TOKENS:
            self._plain = measured
            waited = self._tokens >= self._pause and predicted > measured
            self.drafts = waited or self._drafted > measured
        if self.drafts != before:
            self._tokens = self._measured_tokens = 0
            if self.drafts:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self.drafts != before

    def _goes_on(self, predicted: float, measured: float, plain: float) -> bool:
        enough = plain * _MUCH_FASTER
        if self._plain is not None:
            plain = enough = self._plain
        if self._measured_tokens < _SHORT_TRIAL_TOKENS:
            return predicted > plain
        self._drafted = measured
        if self._measured_tokens < _TRIAL_TOKENS:
            return measured >= _MUCH_SLOWER * plain
        return measured >= enough
