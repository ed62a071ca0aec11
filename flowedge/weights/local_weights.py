"""The weights that this device has and gives to other devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from flowedge.device.disk_cache.digest import digest_of
from flowedge.device.disk_cache.file_range import FileRange, FileState
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.weights.known_models import KnownModels
from flowedge.weights.manifest import Manifest

ABSENT, RECEIVING, HELD = 0, 1, 2


@dataclass
class Traffic:
    """Bytes of objects that crossed the network since the agent started, and streams being sent now."""

    sent: int = 0
    received: int = 0
    sending: int = 0


@dataclass
class LocalWeights:
    """The objects of the cache, and tensors in the directories of models that this agent has opened.

    Attributes:
        shared: names and manifests of the models in directories, by id.
    """

    store: ObjectStore
    shared: dict[str, tuple[str, Manifest]] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self.known_models = KnownModels(self.store)
        self._ranges: dict[str, FileRange] = {}
        self._documents: dict[str, bytes] = {}
        self._receiving: set[str] = set()
        self._guard = threading.Lock()

    @classmethod
    def configured(cls, cache_dir: str | None, cache_gib: float | None) -> LocalWeights:
        return cls(ObjectStore(CacheLimits.configured(cache_dir, cache_gib)))

    def share(self, name: str, manifest: Manifest, ranges: Mapping[str, FileRange]) -> None:
        """Give a model's objects to other devices from these ranges, while the files do not change."""
        with self._guard:
            self.shared[manifest.id] = name, manifest
        self.give(manifest.content, ranges)

    def give(self, document: bytes, ranges: Mapping[str, FileRange]) -> None:
        """Give a document, and the objects that it lists, to other devices."""
        with self._guard:
            self._documents[digest_of(document)] = document
            self._ranges.update(ranges)

    def document(self, digest: str) -> bytes | None:
        """Return a document that is held in memory; None if it is absent."""
        return self._documents.get(digest)

    def locate(self, digest: str) -> FileRange | None:
        """Return the place of an object on this device; None if it is absent."""
        path = self.store.path(digest)
        state = FileState.found(path)
        return self._ranges.get(digest) if state is None else FileRange(path, 0, state.size, state)

    def state_of(self, digest: str) -> int:
        """ABSENT, RECEIVING or HELD."""
        if digest in self._documents or digest in self._ranges or self.store.size(digest) is not None:
            return HELD
        return RECEIVING if digest in self._receiving else ABSENT

    def drop_unreadable(self, digest: str, found: FileRange) -> None:
        """Stop giving an object whose file has changed or cannot be read; delete a damaged cached one."""
        with self._guard:
            if self._ranges.get(digest) == found:
                del self._ranges[digest]
        if found.path == self.store.path(digest):
            self.store.verify(digest)

    @contextmanager
    def adding(self, manifest: Manifest, name: str) -> Iterator[None]:
        """Store a manifest, pin its objects until the context ends, then make the model known."""
        with self.store.pin({manifest.id: 0, **manifest.sizes}):
            self.store.put(manifest.content)
            yield
            self.known_models.put(manifest, name)

    @contextmanager
    def receiving(self, digest: str) -> Iterator[None]:
        """Report an object as RECEIVING until the context ends."""
        with self._guard:
            self._receiving.add(digest)
        try:
            yield
        finally:
            with self._guard:
                self._receiving.discard(digest)
