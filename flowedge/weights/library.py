"""What this device can give: objects of its cache, and tensors in the directories of models it has opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from flowedge.storage.digest import digest_of
from flowedge.storage.limits import CacheLimits
from flowedge.storage.objects import ObjectStore
from flowedge.weights.known_models import KnownModels
from flowedge.weights.manifest.location import FileState, Location
from flowedge.weights.manifest.manifest import Manifest

ABSENT, RECEIVING, HELD = 0, 1, 2


@dataclass
class Traffic:
    """Bytes of objects that went over the network since the agent started."""

    sent: int = 0
    received: int = 0
    sending: int = 0  # streams now


@dataclass
class Library:
    """One for each agent.

    Attributes:
        shared: models that are read from a directory here, by id, with their names.
    """

    store: ObjectStore
    shared: dict[str, tuple[str, Manifest]] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self.shelf = KnownModels(self.store)
        self._locations: dict[str, Location] = {}
        self._contents: dict[str, bytes] = {}
        self._receiving: set[str] = set()
        self._guard = threading.Lock()

    @classmethod
    def configured(cls, cache_dir: str | None, cache_gib: float | None) -> Library:
        """See CacheLimits.configured."""
        return cls(ObjectStore(CacheLimits.configured(cache_dir, cache_gib)))

    def share(self, name: str, manifest: Manifest, locations: Mapping[str, Location]) -> None:
        """Give what a manifest lists from where it is, as long as the files stay as they are."""
        with self._guard:
            self.shared[manifest.id] = name, manifest
        self.give(manifest.content, locations)

    def give(self, content: bytes, locations: Mapping[str, Location]) -> None:
        """Give a document by its hash, and what it lists from where it is."""
        with self._guard:
            self._contents[digest_of(content)] = content
            self._locations.update(locations)

    def content(self, digest: str) -> bytes | None:
        """An object that is held in memory: a manifest."""
        return self._contents.get(digest)

    def locate(self, digest: str) -> Location | None:
        """Where an object is that can be given; None when it is not here."""
        path = self.store.path(digest)
        try:
            state = FileState.of(path)
        except FileNotFoundError:
            return self._locations.get(digest)
        return Location(path, 0, state.size, state)

    def state_of(self, digest: str) -> int:
        """ABSENT, RECEIVING or HELD."""
        if digest in self._contents or digest in self._locations or self.store.size(digest) is not None:
            return HELD
        return RECEIVING if digest in self._receiving else ABSENT

    def lost(self, location: Location, digest: str) -> None:
        """What is at a location is not what it was: it is not given any more, and dropped from the cache."""
        with self._guard:
            if self._locations.get(digest) == location:
                del self._locations[digest]
        if location.path == self.store.path(digest):
            self.store.verify(digest)

    @contextmanager
    def receiving(self, digest: str) -> Iterator[None]:
        """While a stream brings an object, others are told so."""
        with self._guard:
            self._receiving.add(digest)
        try:
            yield
        finally:
            with self._guard:
                self._receiving.discard(digest)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Bytes of a file; OSError where it ends before."""
    data = os.pread(descriptor, size, offset)
    if len(data) < size:
        # A read may stop early at 2 GiB or a signal only; chunks are small, so the file is short.
        raise OSError(f"the file ends before byte {offset + size}")
    return data
