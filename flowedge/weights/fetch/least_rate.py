"""The least rate at which a device has to send."""

from __future__ import annotations


class LeastRate:
    """Judges a stream by the bytes that came while this device waited for them."""

    def __init__(self, bytes_per_s: float, window_s: float) -> None:
        """window_s: seconds of waiting over which the rate is measured."""
        self._least, self._window_s = bytes_per_s, window_s
        self._bytes = self._total_bytes = 0
        self._waited_s = self._total_s = 0.0

    @property
    def total_bytes(self) -> int:
        """The bytes of the whole stream."""
        return self._total_bytes

    @property
    def total_s(self) -> float:
        """The seconds for which this device waited for them."""
        return self._total_s

    def suffices(self, count: int, waited_s: float) -> bool:
        """Take in a received message, and return whether the last whole window was fast enough.

        Args:
            count: bytes of the message.
            waited_s: seconds for which this device waited for the message.
        """
        self._bytes, self._total_bytes = self._bytes + count, self._total_bytes + count
        self._waited_s, self._total_s = self._waited_s + waited_s, self._total_s + waited_s
        if self._waited_s < self._window_s:
            return True
        suffices = self._bytes >= self._least * self._waited_s
        self._bytes, self._waited_s = 0, 0.0
        return suffices
