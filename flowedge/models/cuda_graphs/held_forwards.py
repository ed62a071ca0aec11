"""The static forwards and KV stores that are held for later calls, and what stops the recording."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from flowedge.models.attention.kv_store import KeyValueStore
from flowedge.models.cuda_graphs.static_keys import static_slots
from flowedge.models.host.memory_errors import is_out_of_memory

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


MOST_FORWARDS = 32  # of a model part, over all sessions; each has one graph or more
# A static forward gives way to another when none of so many forwards has used it. A capture takes longer than
# a forward, so sessions in turns must not take each other's place.
UNUSED_FORWARDS = 256

_log = logging.getLogger(__name__)


class HeldForward(Protocol):
    """A static forward over a store."""

    @property
    def nbytes(self) -> int:
        """The bytes of static tensors; a graph's intermediates are the allocator's."""

    def make_pieces(self) -> None:
        """Make the pieces if there are none.

        Raises:
            RuntimeError: when the device cannot record the pieces.
        """


F = TypeVar("F", bound=HeldForward)
Variant = Hashable  # what distinguishes the static forwards over a store, such as their shape


class HeldForwards(Generic[F]):
    """The static forwards of a model part, by store and variant.

    A forward of a new variant is refused for the first `uncaptured` times, since a variant that never comes
    again is not worth a capture.

    Attributes:
        failure: why the device cannot record forwards; empty as long as it can.
    """

    def __init__(self, title: str, uncaptured: int) -> None:
        """Hold no forward yet; `title` names the model part in the log."""
        self.failure = ""
        self._title = title
        self._uncaptured = uncaptured
        self._forwards: OrderedDict[tuple[KeyValueStore, Variant], F] = OrderedDict()
        self._used_at: dict[tuple[KeyValueStore, Variant], int] = {}  # the number of the latest use
        self._count = 0  # uses of all forwards so far
        self._paused_until = 0  # the count of uses before which none is answered
        self._asked: dict[Variant, int] = {}

    def __iter__(self) -> Iterator[F]:
        return iter(list(self._forwards.values()))

    def find(self, store: KeyValueStore, variant: Variant, make: Callable[[], F]) -> F | None:
        """Return the forward of a variant over a store, new if need be.

        Returns:
            None after a failure, for a variant that is not worth a capture yet, when all forwards that are
            held were used lately, and for some time after memory ran out.
        """
        asked = self._asked.get(variant, 0)
        self._asked[variant] = asked + 1
        if self.failure or asked < self._uncaptured:
            return None
        self._count += 1
        if self._count < self._paused_until:
            return None
        key = (store, variant)
        forward = self._forwards.get(key)
        if forward is None:
            if len(self._forwards) == MOST_FORWARDS:
                oldest = next(iter(self._forwards))
                if self._count - self._used_at[oldest] < UNUSED_FORWARDS:
                    return None
                self._remove(oldest)
            forward = self._forwards[key] = make()
        self._forwards.move_to_end(key)
        self._used_at[key] = self._count
        return forward

    def make_pieces(self, forward: F) -> bool:
        """Make the pieces of a forward; when the device cannot, say so in the log, and free all forwards.

        Another attempt is made only if memory ran out, and not soon.
        """
        try:
            forward.make_pieces()
        except RuntimeError as error:
            if is_out_of_memory(_first(error)):
                self._pause()
            else:
                self._give_up(error)
            return False
        return True

    def drop(self, store: KeyValueStore) -> None:
        """Free the forwards over a store."""
        for key in [key for key in self._forwards if key[0] is store]:
            self._remove(key)

    def clear(self) -> None:
        """Free all forwards."""
        self._forwards.clear()
        self._used_at.clear()

    def _remove(self, key: tuple[KeyValueStore, Variant]) -> None:
        del self._forwards[key], self._used_at[key]

    def _pause(self) -> None:
        self._paused_until = self._count + UNUSED_FORWARDS
        self.clear()
        _log.warning(
            "%s without CUDA graphs for the next %d forwards: memory ran out while they were recorded",
            self._title,
            UNUSED_FORWARDS,
        )

    def _give_up(self, error: RuntimeError) -> None:
        first = _first(error)
        self.failure = str(first).splitlines()[0] if str(first) else type(first).__name__
        self.clear()
        _log.warning(
            "%s without CUDA graphs, layer by layer: the device cannot record them (%s); "
            "set agent.cuda_graphs = false to leave out the attempt",
            self._title,
            self.failure,
        )


def _first(error: Exception) -> Exception:
    """The error while which an error was raised: the end of a failed capture is another error."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error
