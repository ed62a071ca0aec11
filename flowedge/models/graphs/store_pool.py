"""The stores of keys and values of a block's sessions, which later sessions use again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from flowedge.models.graphs.shapes import static_slots
from flowedge.models.kv.store import KeyValueStore

S = TypeVar("S", bound=KeyValueStore)


class StorePool(Generic[S]):
    """Stores whose last row is scratch, for rows of padding.

    Graphs hold the addresses of a store. So the store of an ended session waits for the next session of the
    same size, until a store of another size is needed.
    """

    def __init__(self, new_store: Callable[[int], S]) -> None:
        """Begin without stores; `new_store` allocates a store of a number of rows."""
        self._new_store = new_store
        self._owned: weakref.WeakSet[S] = weakref.WeakSet()
        self._idle: list[S] = []

    @property
    def idle_bytes(self) -> int:
        return sum(store.nbytes for store in list(self._idle))

    def slots(self, store: S) -> int:
        """The slots of a store without the scratch row; 0 for a store of another origin."""
        return store.kv.shape[3] - 1 if store in self._owned else 0

    def take(self, capacity_rows: int, drop: Callable[[S], None]) -> S:
        """Return a store of zeros for a session of `capacity_rows` rows.

        Args:
            drop: called with each idle store that is freed first, so that stores never take more memory
                than the sessions that were open together.
        """
        slots = static_slots(capacity_rows)
        for index, idle in enumerate(self._idle):
            if self.slots(idle) == slots:
                del self._idle[index]
                # A value that is not finite would reach later rows although its weight is 0.
                idle.clear()
                return idle
        while self._idle:
            drop(self._idle.pop())
        store = self._new_store(slots + 1)
        self._owned.add(store)
        return store

    def clear(self) -> None:
        """Free the idle stores."""
        self._idle.clear()

    def give_back(self, store: S) -> None:
        """Keep a store, whose session has ended, for another session."""
        self._idle.append(store)
