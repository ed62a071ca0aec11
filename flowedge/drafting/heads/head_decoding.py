"""The small forwards of an EAGLE head, as static forwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from flowedge.drafting.heads.head_rows import GrownRows, HeadRows, TrueRows
from flowedge.drafting.heads.head_store import HeadSizes, HeadStore
from flowedge.drafting.heads.static_head import HeadModules, StaticExtension, StaticGrowth, StaticHead
from flowedge.models.cuda_graphs.held_forwards import HeldForwards, StorePool
from flowedge.models.cuda_graphs.recording import RecordingMaker
from flowedge.models.cuda_graphs.static_keys import StaticShape, choose_shape, static_rows

S = TypeVar("S", bound=StaticHead[Any])
MakeStatic = Callable[[HeadModules, HeadStore, StaticShape, RecordingMaker], S]


class HeadDecoding:
    """Computes the forwards of at most 64 rows over stores of its own."""

    def __init__(
        self, modules: HeadModules, sizes: HeadSizes, maker: RecordingMaker, *, uncaptured: int = 1
    ) -> None:
        """Decode for a head; `uncaptured` as for HeldForwards."""
        self._modules = modules
        self._maker = maker
        self._counts = static_rows(None)
        self._pool: StorePool[HeadStore] = StorePool(lambda rows: HeadStore(sizes, rows))
        self._growths: HeldForwards[StaticGrowth] = HeldForwards("growths of the draft head run", uncaptured)
        self._extensions: HeldForwards[StaticExtension] = HeldForwards(
            "extensions of the draft head run", uncaptured
        )

    @property
    def failure(self) -> str:
        """Why the device cannot record forwards; empty as long as it can."""
        return self._growths.failure or self._extensions.failure

    @property
    def nbytes(self) -> int:
        """The bytes of static tensors, and of stores that wait for the next session."""
        growths = sum(each.nbytes for each in self._growths)
        return self._pool.idle_bytes + growths + sum(each.nbytes for each in self._extensions)

    def store_for(self, rows: int) -> HeadStore:
        """Return a store of zeros with `rows` rows or more for a new session."""
        return self._pool.take(rows, self._drop)

    def give_back(self, store: HeadStore) -> None:
        """Keep the store of an ended session for another session."""
        if self._pool.slots(store):
            self._pool.give_back(store)

    def free(self) -> None:
        """Free all static tensors, and the stores that wait for the next session."""
        self._growths.clear()
        self._extensions.clear()
        self._pool.clear()

    def grow(self, store: HeadStore, rows: GrownRows) -> torch.Tensor | None:
        """Compute rows of a growth, and store what they predict.

        Returns:
            Their logits float32 [n, columns]; None when the forward is not a static one.
        """
        forward = self._run(self._growths, StaticGrowth, store, rows)
        return None if forward is None else forward.logits(rows.count)

    def extend(self, store: HeadStore, rows: TrueRows) -> bool:
        """Compute rows of the text, and store what they predict.

        Returns:
            Whether that was done; False when the forward is not a static one.
        """
        width = rows.given.shape[1]  # that of the last stage's rows, which may carry another drafter's taps
        return self._run(self._extensions, StaticExtension, store, rows, width) is not None

    def _run(
        self, held: HeldForwards[S], make: MakeStatic[S], store: HeadStore, rows: HeadRows, *variant: int
    ) -> S | None:
        """Return the static forward that has computed the rows; None when no static forward can."""
        shape = choose_shape(self._counts, rows.count, rows.stop, self._pool.slots(store))
        if shape is None:
            return None
        new = partial(make, self._modules, store, shape, self._maker)
        forward = held.find(store, (shape, *variant), new)
        if forward is None or not forward.fill(rows) or not held.make_pieces(forward):
            return None
        forward.run()
        return forward

    def _drop(self, store: HeadStore) -> None:
        self._growths.drop(store)
        self._extensions.drop(store)
