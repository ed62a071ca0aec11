"""The comparison of cached objects with their digests, once for each model that is opened."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from flowedge.storage.objects import ObjectStore
from flowedge.weights.threads import hashing_threads


class Verification:
    """The objects that were found intact while one model is opened.

    Nothing is remembered beyond that: size and time of a file stay the same when a disk returns other bytes.

    Attributes:
        damaged: the number of objects that were deleted.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.damaged = 0
        self._store = store
        self._intact: set[str] = set()

    def delete_damaged(self, digests: Iterable[str]) -> list[str]:
        """Hash the cached objects among `digests` that were not found intact before; delete damaged objects.

        Returns the digests of the deleted objects.
        """
        cached = [
            digest
            for digest in dict.fromkeys(digests)
            if digest not in self._intact and self._store.size(digest) is not None
        ]
        with ThreadPoolExecutor(hashing_threads()) as threads:
            intact = list(threads.map(self._store.verify, cached))
        self._intact.update(digest for digest, good in zip(cached, intact, strict=True) if good)
        damaged = [digest for digest, good in zip(cached, intact, strict=True) if not good]
        self.damaged += len(damaged)
        return damaged

    def note_received(self, digests: Iterable[str]) -> None:
        """Note objects that were hashed while they were received."""
        self._intact.update(digests)
