"""The models that the cache knows: for each a directory by its id, with links to its small files."""

from __future__ import annotations

import logging
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import check_digest, is_digest
from flowedge.storage.objects import ObjectStore
from flowedge.weights.manifest.manifest import Manifest, parse_manifest

MODELS = "models"  # below the cache's root
MAX_NAME = 128
_NAME = ".name"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownModel:
    """A model whose manifest is in the cache.

    Attributes:
        name: for people.
        here: bytes of it that are in the cache.
    """

    name: str
    manifest: Manifest
    here: int


class KnownModels:
    """Directories below the root of the cache; only names that a manifest may have are ever made in them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = store.limits.root / MODELS

    def put(self, manifest: Manifest, name: str) -> Path:
        """Make a model known, and link what is here of its files; returns its directory. OSError.

        A name that it has already stays.
        """
        directory = self._root / check_digest(manifest.id)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (directory / _NAME).exists():
            (directory / _NAME).write_text(shown(name), encoding="utf-8")
        for entry in manifest.files:
            target = self._store.path(entry.sha256)
            if target.exists():
                _link(directory / entry.name, Path("..", "..", target.relative_to(self._store.limits.root)))
            else:
                (directory / entry.name).unlink(missing_ok=True)
        return directory

    def manifest(self, model: str) -> Manifest | None:
        """The manifest of an id; None when it is not here."""
        data = self._store.read(check_digest(model))
        return None if data is None else parse_manifest(data, model)

    def models(self) -> list[KnownModel]:
        """All of them, by name; those whose manifest is gone are forgotten."""
        found = []
        for directory in self._root.glob("*"):
            if not is_digest(directory.name):
                continue
            try:
                manifest = self.manifest(directory.name)
            except ProtocolError as error:
                _log.warning("the cached model %s is dropped: %s", directory.name, error)
                manifest = None
            if manifest is None:
                self.forget(directory.name)
                continue
            try:
                name = shown((directory / _NAME).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                name = "model"
            here = sum(self._store.size(digest) or 0 for digest in manifest.sizes)
            found.append(KnownModel(name, manifest, here))
        return sorted(found, key=lambda model: (model.name, model.manifest.id))

    def forget(self, model: str) -> None:
        """Drop the directory of a model, not its objects."""
        shutil.rmtree(self._root / check_digest(model), ignore_errors=True)


def name_of(source: str) -> str:
    """What to call the model of a directory or hub id, for people."""
    path = Path(source).expanduser()
    return shown(path.resolve().name if path.is_dir() else path.name)


def shown(name: str) -> str:
    """A name for people, of printable characters and not too long."""
    return "".join(character for character in name if character.isprintable())[:MAX_NAME] or "model"


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    fresh = path.with_name(f".{uuid.uuid4().hex}")
    fresh.symlink_to(target)
    fresh.replace(path)
