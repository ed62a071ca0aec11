"""Making the manifest of a checkpoint in a directory. Imports torch."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.weight_file import DTYPES, WeightFile, WeightSlice
from flowedge.storage.digest import hash_range, is_digest
from flowedge.weights.manifest.location import FileState, Location
from flowedge.weights.manifest.manifest import FILE_NAMES, FileEntry, Manifest, TensorEntry

KNOWN = "known"  # below the cache's root: the hashes of files that were read before
MAX_KNOWN = 500  # files; older ones are forgotten
OnBytes = Callable[[int, int], None]  # how many were read, of how many

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DescribedModel:
    """A manifest and where each of its objects is on this device."""

    manifest: Manifest
    locations: Mapping[str, Location]


def describe(checkpoint: Checkpoint, cache_root: Path, on_bytes: OnBytes = lambda *_: None) -> DescribedModel:
    """The manifest of a checkpoint of safetensors files.

    All of it is read once; the hashes are remembered below `cache_root` for as long as the files stay as they
    are. CheckpointError for files of another kind, or that cannot be read.
    """
    directory = checkpoint.directory
    slices: dict[Path, list[WeightSlice]] = {}
    for file in checkpoint.files:
        if not isinstance(file, WeightFile):
            raise CheckpointError(f"{directory}: only safetensors are shared; convert the .bin files first")
        slices[file.path] = list(file.values())
    small = [directory / name for name in sorted(FILE_NAMES) if (directory / name).is_file()]
    total = sum(path.stat().st_size for path in [*slices, *small])
    meter = _HashProgress(total, on_bytes)
    locations: dict[str, Location] = {}
    try:
        files = tuple(_describe_file(path, locations) for path in small)
        tensors = [
            entry
            for path, held in slices.items()
            for entry in _describe_tensors(path, held, cache_root, meter, locations)
        ]
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error}") from error
    manifest = Manifest(
        fingerprint=checkpoint.fingerprint,
        quant=checkpoint.quant,
        files=files,
        tensors=tuple(sorted(tensors, key=lambda entry: entry.name)),
    )
    return DescribedModel(manifest, locations)


def locate(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, Location]:
    """Where the objects of a manifest are in a directory that holds the same model, by its fingerprint.

    Nothing is read; who is given an object checks it. CheckpointError as `describe`.
    """
    locations: dict[str, Location] = {}
    try:
        for entry in manifest.files:
            path = checkpoint.directory / entry.name
            if path.is_file():
                locations[entry.sha256] = Location(path, 0, entry.bytes, FileState.of(path))
        for file in checkpoint.files:
            if not isinstance(file, WeightFile):
                continue
            state = FileState.of(file.path)
            for name, part in file.items():
                known = manifest.tensors_by_name.get(name)
                if known is not None and known.bytes == part.nbytes:
                    locations[known.sha256] = Location(file.path, part.offset, part.nbytes, state)
    except OSError as error:
        raise CheckpointError(f"{checkpoint.directory}: cannot be read: {error}") from error
    return locations


class _HashProgress:
    def __init__(self, total: int, on_bytes: OnBytes) -> None:
        self._done, self._total, self._on_bytes = 0, total, on_bytes

    def add(self, count: int) -> None:
        self._done += count
        self._on_bytes(self._done, self._total)


def _describe_file(path: Path, locations: dict[str, Location]) -> FileEntry:
    data, state = path.read_bytes(), FileState.of(path)
    digest = hashlib.sha256(data).hexdigest()
    locations[digest] = Location(path, 0, len(data), state)
    return FileEntry(path.name, len(data), digest)


def _describe_tensors(
    path: Path,
    slices: list[WeightSlice],
    cache_root: Path,
    meter: _HashProgress,
    locations: dict[str, Location],
) -> list[TensorEntry]:
    state = FileState.of(path)
    known = _FileHashes.of(path, state, cache_root)
    entries = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for part in slices:
            size = part.nbytes
            digest = known.hashes.get(part.name)
            if digest is None:
                digest = hash_range(descriptor, part.offset, size, meter.add).hexdigest()
                known.hashes[part.name] = digest
            else:
                meter.add(size)
            entries.append(TensorEntry(part.name, _DTYPE_NAMES[part.dtype], part.shape, size, digest))
            locations[digest] = Location(path, part.offset, size, state)
    finally:
        os.close(descriptor)
    known.store()
    return entries


@dataclass
class _FileHashes:
    """The hashes of one file's tensors, as they were when it was read last."""

    path: Path
    hashes: dict[str, str]
    count: int

    @classmethod
    def of(cls, file: Path, state: FileState, cache_root: Path) -> _FileHashes:
        key = json.dumps([str(file.resolve()), asdict(state)])
        path = cache_root / KNOWN / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            hashes = {str(name): str(digest) for name, digest in found.items() if is_digest(str(digest))}
        except FileNotFoundError:
            hashes = {}
        except (OSError, ValueError, AttributeError) as error:
            _log.warning("the remembered hashes %s cannot be read and are made again: %s", path, error)
            hashes = {}
        return cls(path, hashes, len(hashes))

    def store(self) -> None:
        """Only a convenience: a disk that does not take it is logged."""
        if len(self.hashes) == self.count:
            return
        partial = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.write_text(json.dumps(self.hashes), encoding="utf-8")
            partial.replace(self.path)
            by_age = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in by_age[:-MAX_KNOWN]:
                old.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the hashes of %s are not remembered: %s", self.path, error)
