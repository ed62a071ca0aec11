"""The failed attempts to join, by address: after several of them an address has to wait."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_FREE = 5  # failures of an address before it has to wait
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0  # a device with a right token, at the address of an attacker, waits no longer
_FORGOTTEN_S = 600.0  # after the last failure of an address
_MAX_ADDRESSES = 4096


@dataclass
class _FailedAttempts:
    count: int = 0
    last_s: float = 0.0
    free_s: float = 0.0  # the time from which the address may try again


class JoinThrottle:
    """The failures of each address. Times are of a monotonic clock, in seconds.

    A refusal before the end of a wait counts as no failure, so no wait is longer than the longest. Whoever
    shares an address with a guesser that tries at each end of a wait may have to try often. Secrets of tokens
    have 192 bits, so that guessing is hopeless without the throttle as well; it saves the machine's time.
    """

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _FailedAttempts] = OrderedDict()
        self.failures = 0  # of all addresses, since the start

    def __len__(self) -> int:
        """The number of addresses that have failures."""
        return len(self._addresses)

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the seconds that an address has to wait before its next attempt; 0 if it need not."""
        found = self._addresses.get(address)
        return 0.0 if found is None else max(0.0, found.free_s - now_s)

    def failed(self, address: str, now_s: float) -> float:
        """Count a failure; return the seconds that the address now has to wait."""
        self.failures += 1
        found = self._addresses.pop(address, None)
        if found is None or now_s - found.last_s > _FORGOTTEN_S:
            found = _FailedAttempts()
        found.count, found.last_s = found.count + 1, now_s
        if found.count > _FREE:
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(found.count - _FREE - 1, 16), _LONGEST_WAIT_S)
            found.free_s = now_s + wait_s
        self._addresses[address] = found
        while len(self._addresses) > _MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        return self.wait_s(address, now_s)

    def joined(self, address: str) -> None:
        """Forget the failures of an address."""
        self._addresses.pop(address, None)
