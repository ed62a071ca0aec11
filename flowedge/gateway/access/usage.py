"""What a key has used lately, and when it may use more."""

from __future__ import annotations

from collections import deque

from flowedge.gateway.access.keys import KeyLimits
from flowedge.gateway.errors import ApiError

MINUTE_S = 60.0
DAY_S = 86400.0
_BUSY_S = 1.0  # after which a key with too many requests at once may try again


class Window:
    """Amounts used within a sliding time.

    Of a day, what was used within 24 seconds is kept together, so that the memory stays small.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grain_s = seconds / 3600
        self._used: deque[tuple[float, int]] = deque()  # (time of the last use, amount)
        self.total = 0

    def __len__(self) -> int:
        return len(self._used)

    def add(self, amount: int, now: float) -> None:
        if self._used and now - self._used[-1][0] < self._grain_s and self._seconds > MINUTE_S:
            self._used[-1] = (self._used[-1][0], self._used[-1][1] + amount)
        else:
            self._used.append((now, amount))
        self.total += amount

    def wait_s(self, most: int | None, now: float) -> float:
        """Return the seconds after which less than `most` is used; 0 if that is so now.

        Args:
            most: None for no limit.
        """
        while self._used and self._used[0][0] <= now - self._seconds:
            self.total -= self._used.popleft()[1]
        if most is None or self.total < most:
            return 0.0
        left = self.total
        for then, amount in self._used:
            left -= amount
            if left < most:
                return then + self._seconds - now
        return self._seconds


class KeyUsage:
    """Requests and tokens of one key."""

    def __init__(self) -> None:
        self._requests, self._minute, self._day = Window(MINUTE_S), Window(MINUTE_S), Window(DAY_S)
        self._running = 0

    def begin(self, limits: KeyLimits, now: float) -> None:
        """Count a request that begins.

        Raises:
            ApiError: with status 429, and nothing is counted.
        """
        if limits.concurrent is not None and self._running >= limits.concurrent:
            raise _refused(f"{limits.concurrent} requests at once", "concurrent_requests", _BUSY_S)
        wait_s = self._requests.wait_s(limits.requests_per_minute, now)
        if wait_s > 0:
            raise _refused(f"{limits.requests_per_minute} requests a minute", "requests", wait_s)
        self.check_tokens(limits, now)
        self._running += 1
        self._requests.add(1, now)

    def end(self) -> None:
        """Count a request that has ended."""
        self._running -= 1

    def add_tokens(self, tokens: int, now: float) -> None:
        self._minute.add(tokens, now)
        self._day.add(tokens, now)

    def check_tokens(self, limits: KeyLimits, now: float) -> None:
        """Check that tokens are left.

        Raises:
            ApiError: with status 429.
        """
        for window, most, name in (
            (self._minute, limits.tokens_per_minute, "minute"),
            (self._day, limits.tokens_per_day, "day"),
        ):
            wait_s = window.wait_s(most, now)
            if wait_s > 0:
                raise _refused(f"{most} tokens a {name}", "tokens", wait_s)


def _refused(limit: str, code: str, wait_s: float) -> ApiError:
    return ApiError(
        429,
        f"this key may use {limit}; try again in {max(wait_s, 1):.0f} s",
        kind=code,
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )
