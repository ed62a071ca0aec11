"""The static forwards that are held for later calls, and whether the device can record them at all."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from flowedge.models.kv.store import KeyValueStore

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
        self._asked: dict[Variant, int] = {}

    def __iter__(self) -> Iterator[F]:
        return iter(list(self._forwards.values()))

    def find(self, store: KeyValueStore, variant: Variant, make: Callable[[], F]) -> F | None:
        """Return the forward of a variant over a store, new if need be.

        Returns:
            None after a failure, for a variant that is not worth a capture yet, and when all forwards that
            are held were used lately.
        """
        asked = self._asked.get(variant, 0)
        self._asked[variant] = asked + 1
        if self.failure or asked < self._uncaptured:
            return None
        self._count += 1
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
        """Make the pieces of a forward; when the device cannot, say so once, and free all forwards."""
        try:
            forward.make_pieces()
        except RuntimeError as error:
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

    def _give_up(self, error: RuntimeError) -> None:
        first: BaseException = error
        while first.__context__ is not None:  # the end of a failed capture is another error
            first = first.__context__
        self.failure = str(first).splitlines()[0] if str(first) else type(first).__name__
        self.clear()
        _log.warning(
            "%s without CUDA graphs, layer by layer: the device cannot record them (%s); "
            "set agent.cuda_graphs = false to leave out the attempt",
            self._title,
            self.failure,
        )
