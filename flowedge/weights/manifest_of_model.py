"""Making the manifest of a checkpoint in a directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flowedge.core.errors import AccessError, CheckpointError
from flowedge.device import private_files
from flowedge.device.disk_cache.digest import digest_of, hash_range, is_digest
from flowedge.device.disk_cache.file_range import FileRange, FileState
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.quantiser_settings import QUANTISER_FILES
from flowedge.models.files.weight_file import StoredSlice, TensorFile
from flowedge.weights.manifest import (
    CONFIG,
    FILE_NAMES,
    GENERATION_CONFIG,
    FileEntry,
    Manifest,
    TensorEntry,
)

KNOWN = "known"  # below the cache's root: the hashes of files that were read before
MAX_KNOWN = 500  # files; older ones are deleted
OnBytes = Callable[[int, int], None]  # bytes hashed so far, bytes of the model

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DescribedModel:
    """A manifest, and where each of its objects is on this device, by digest."""

    manifest: Manifest
    ranges: Mapping[str, FileRange]


def describe(checkpoint: Checkpoint, cache_root: Path, on_bytes: OnBytes = lambda *_: None) -> DescribedModel:
    """Make the manifest of a checkpoint in safetensors or GGUF files.

    This reads the whole model once. The hashes are stored below `cache_root` and used again while the files
    do not change.

    Raises:
        CheckpointError: when the weights are in other files, or cannot be read.
    """
    slices: dict[Path, list[StoredSlice]] = {}
    for file in checkpoint.files:
        if not isinstance(file, TensorFile):
            raise CheckpointError(
                f"{checkpoint.place}: only safetensors and GGUF files can be given to other devices; convert "
                "the .bin files"
            )
        slices[file.path] = list(file.values())
    small = _small_files(checkpoint)
    ranges: dict[str, FileRange] = {}
    try:
        on_hashed = _counting(sum(path.stat().st_size for path in [*slices, *small]), on_bytes)
        files = tuple(_describe_file(path, ranges) for path in small)
        tensors = [
            entry
            for path, stored in slices.items()
            for entry in _describe_tensors(path, stored, cache_root, on_hashed, ranges)
        ]
    except OSError as error:
        raise CheckpointError(f"{checkpoint.place}: cannot be read: {error}") from error
    manifest = Manifest(
        fingerprint=checkpoint.fingerprint,
        quant=checkpoint.quant,
        files=files,
        tensors=tuple(sorted(tensors, key=lambda entry: entry.name)),
    )
    return DescribedModel(manifest, ranges)


def locate(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, FileRange]:
    """Find the objects of a manifest in a directory whose checkpoint has the manifest's fingerprint.

    Nothing is hashed, since a device that receives an object verifies it.
    """
    ranges: dict[str, FileRange] = {}
    try:
        for entry in manifest.files:
            path = checkpoint.directory / entry.name
            if path.is_file():
                ranges[entry.sha256] = FileRange(path, 0, entry.bytes, FileState.of(path))
        for file in checkpoint.files:
            if not isinstance(file, TensorFile):
                continue
            state = FileState.of(file.path)
            for name, part in file.items():
                known = manifest.tensors_by_name.get(name)
                if known is not None and known.bytes == part.nbytes:
                    ranges[known.sha256] = FileRange(file.path, part.offset, part.nbytes, state)
    except OSError as error:
        raise CheckpointError(f"{checkpoint.place}: cannot be read: {error}") from error
    return ranges


def _small_files(checkpoint: Checkpoint) -> list[Path]:
    """The files of the config and of the tokenizer, sorted by name."""
    of_model, tokenizer = {CONFIG, GENERATION_CONFIG, *QUANTISER_FILES}, checkpoint.tokenizer_directory()
    paths = [(checkpoint.directory if name in of_model else tokenizer) / name for name in sorted(FILE_NAMES)]
    return [path for path in paths if path.is_file()]


def _counting(total: int, on_bytes: OnBytes) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        on_bytes(done, total)

    return add


def _describe_file(path: Path, ranges: dict[str, FileRange]) -> FileEntry:
    data, state = path.read_bytes(), FileState.of(path)
    digest = digest_of(data)
    ranges[digest] = FileRange(path, 0, len(data), state)
    return FileEntry(path.name, len(data), digest)


def _describe_tensors(
    path: Path,
    slices: list[StoredSlice],
    cache_root: Path,
    on_hashed: Callable[[int], None],
    ranges: dict[str, FileRange],
) -> list[TensorEntry]:
    state = FileState.of(path)
    known = _FileHashes.of(path, state, cache_root)
    entries = []
    with path.open("rb") as file:
        for part in slices:
            size = part.nbytes
            digest = known.hashes.get(part.name)
            if digest is None:
                digest = hash_range(file.fileno(), part.offset, size, on_hashed).hexdigest()
                known.hashes[part.name] = digest
            else:
                on_hashed(size)
            entries.append(TensorEntry(part.name, part.type_name, part.shape, size, digest))
            ranges[digest] = FileRange(path, part.offset, size, state)
    known.store()
    return entries


@dataclass
class _FileHashes:
    """The stored hashes of the tensors in one file, by tensor name."""

    path: Path
    hashes: dict[str, str]
    count: int  # of hashes that were read from disk

    @classmethod
    def of(cls, file: Path, state: FileState, cache_root: Path) -> _FileHashes:
        key = json.dumps([str(file.resolve()), asdict(state)])
        path = cache_root / KNOWN / f"{digest_of(key.encode())}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            hashes = {str(name): str(digest) for name, digest in found.items() if is_digest(str(digest))}
        except FileNotFoundError:
            hashes = {}
        except (OSError, ValueError, AttributeError) as error:
            _log.warning("the stored hashes %s cannot be read; the file is hashed again: %s", path, error)
            hashes = {}
        return cls(path, hashes, len(hashes))

    def store(self) -> None:
        """Write the hashes if there are new ones; a failure is only logged."""
        if len(self.hashes) == self.count:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            private_files.write(self.path, json.dumps(self.hashes).encode())
            by_age = sorted(self.path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in by_age[:-MAX_KNOWN]:
                old.unlink(missing_ok=True)
        except (OSError, AccessError) as error:
            _log.warning("the hashes in %s could not be stored: %s", self.path, error)
