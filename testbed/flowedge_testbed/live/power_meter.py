"""The energy that boards draw while a request is answered, by their own monitors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from statistics import fmean
from types import TracebackType

from flowedge.client import Client
from flowedge.core.errors import FlowEdgeError

PERIOD_S = 0.25  # between two readings of a board


class PowerMeter:
    """Reads the power of several boards again and again while it is entered.

    The energy is the mean of the readings times the seconds, so a request should take some seconds. Where a
    board does not tell its power, nothing is read after the first time.
    """

    def __init__(self, read: Callable[[], float | None], period_s: float = PERIOD_S) -> None:
        """read: returns the watts of all boards together; None if one of them does not tell."""
        self._read = read
        self._period_s = period_s
        self._watts: list[float] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def readings(self) -> int:
        """The number of readings so far; 0 where a board does not tell its power."""
        return len(self._watts)

    def __enter__(self) -> PowerMeter:
        self._watts, self._thread = [], None
        self._stopped.clear()
        if (first := self._reading()) is not None:
            self._watts.append(first)
            self._thread = threading.Thread(target=self._watch, name="power-meter", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def joules(self, seconds: float) -> float | None:
        """Return the energy of so many seconds at the mean power; None if a board did not tell its power."""
        during = self._watts[1:] or self._watts  # the first reading is from before the request
        return fmean(during) * seconds if during else None

    def _reading(self) -> float | None:
        try:
            return self._read()
        except FlowEdgeError:
            return None  # the request itself tells which device is lost

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            watts = self._reading()
            if watts is None:
                self._watts = []
                return
            self._watts.append(watts)


def boards_power(clients: Sequence[Client]) -> float | None:
    """Return the watts that the boards of these agents draw together; None if one of them does not tell.

    Raises:
        DeviceLostError: when an agent cannot be reached.
    """
    found = [client.describe().power for client in clients]
    known = [watts for watts in found if watts is not None]
    return sum(known) if len(known) == len(found) else None
