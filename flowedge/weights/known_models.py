"""The models whose manifests are in the cache: a directory for each, with links to its small files."""

from __future__ import annotations

import logging
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.device.disk_cache.digest import check_digest, is_digest
from flowedge.device.disk_cache.objects import ObjectStore
from flowedge.weights.manifest import Manifest, parse_manifest

MODELS = "models"  # below the cache's root
HASH_PREFIX = "sha256:"  # of the name of a model that is given by its hash
MIN_DIGITS = 8  # of a hash that is not given in full
MAX_NAME = 128
_NAME = ".name"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownModel:
    """A model whose manifest is in the cache.

    Attributes:
        name: for people; it identifies nothing.
        cached_bytes: bytes of its objects that are in the cache.
    """

    name: str
    manifest: Manifest
    cached_bytes: int


class KnownModels:
    """The directories of models below the root of the cache."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = store.limits.root / MODELS

    def put(self, manifest: Manifest, name: str) -> Path:
        """Add a model, or update the links of a known one; return its directory.

        The links lead to those of its small files that are cached. A known model keeps its name.
        """
        directory = self._root / check_digest(manifest.id)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (directory / _NAME).exists():
            (directory / _NAME).write_text(printable_name(name), encoding="utf-8")
        for entry in manifest.files:
            target = self._store.path(entry.sha256)
            if target.exists():
                _link(directory / entry.name, Path("..", "..", target.relative_to(self._store.limits.root)))
            else:
                (directory / entry.name).unlink(missing_ok=True)
        return directory

    def manifest(self, model: str) -> Manifest | None:
        """The manifest of an id, None if it is not cached."""
        data = self._store.read(check_digest(model))
        return None if data is None else parse_manifest(data, model)

    def models(self) -> list[KnownModel]:
        """All known models, sorted by name. Directories whose manifest is gone are deleted."""
        found = []
        for directory in self._root.glob("*"):
            if not is_digest(directory.name):
                continue
            try:
                manifest = self.manifest(directory.name)
            except ProtocolError as error:
                _log.warning("the cached model %s is deleted: %s", directory.name, error)
                manifest = None
            if manifest is None:
                self.forget(directory.name)
                continue
            try:
                name = printable_name((directory / _NAME).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                name = "model"
            cached = sum(self._store.size(digest) or 0 for digest in manifest.sizes)
            found.append(KnownModel(name, manifest, cached))
        return sorted(found, key=lambda model: (model.name, model.manifest.id))

    def forget(self, model: str) -> None:
        """Delete the directory of a model, but not its objects."""
        shutil.rmtree(self._root / check_digest(model), ignore_errors=True)

    def resolve(self, model: str) -> str:
        """The id of a known model, by its name, by "sha256:" and its hash, or by first digits of the hash.

        Raises:
            BadRequestError: when that is no known model, or several.
        """
        digits = model.removeprefix(HASH_PREFIX).lower()
        if is_digest(digits):
            return digits
        known = {each.manifest.id: each.name for each in self.models()}
        found = [digest for digest, name in known.items() if name == model]
        if not found and len(digits) >= MIN_DIGITS:
            found = [digest for digest in known if digest.startswith(digits)]
        if len(found) > 1:
            hashes = ", ".join(f"{HASH_PREFIX}{digest[:12]}" for digest in found)
            raise BadRequestError(f"{len(found)} cached models are called {model}: give one of {hashes}")
        if not found:
            here = ", ".join(dict.fromkeys(known.values())) or "no model at all"
            raise BadRequestError(f"no cached model is called {model}; the cache has {here}")
        return found[0]


def is_reference(model: str) -> bool:
    """Return whether a model is named by its hash, not by a directory or hub id."""
    return model.startswith(HASH_PREFIX)


def printable_name(name: str) -> str:
    """A name without unprintable characters, cut to MAX_NAME characters."""
    return "".join(character for character in name if character.isprintable())[:MAX_NAME] or "model"


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    fresh = path.with_name(f".{uuid.uuid4().hex}")
    fresh.symlink_to(target)
    fresh.replace(path)
