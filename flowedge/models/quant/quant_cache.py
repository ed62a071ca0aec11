"""A cache of quantised weights on disk, which spares the next start of a model the quantisation."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file

from flowedge.device.disk_cache.digest import is_digest
from flowedge.device.disk_cache.file_range import FileState
from flowedge.device.disk_cache.limits import CacheLimits
from flowedge.device.disk_cache.space import QUANTISED, WRITING, CacheSpace, remove, touch
from flowedge.models.files.weight_file import WeightFile, byte_view
from flowedge.models.quant.backend import Tensors

_NONE: Mapping[str, Path] = MappingProxyType({})
HEADER_BYTES = 4096  # the most that a file takes beside its tensors
_DIGEST = "sha256"
_UNREAD_PART = 64  # of the limit is stored before the directory is read again

_log = logging.getLogger(__name__)
_DAMAGED = "the cached file %s is damaged and is made again"
_UNREADABLE = "the cached file %s cannot be read and is made again: %s"


@dataclass(frozen=True)
class CacheKey:
    """Everything that an encoded weight depends on: weights with equal keys are equal.

    Attributes:
        content: the SHA-256 of the weight before quantisation, with its shape and dtype.
        precision: the dtype that the weight was rounded to first; "" where rounding changed nothing.
        format: the backend's format.
    """

    content: str
    precision: str
    quant: str
    format: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class QuantCache:
    """Quantised weights in a directory, which shares the size limit of FlowEdge's cache with others.

    The least recently used files are deleted first. Any number of processes may use a directory. While they
    write, it may exceed its limit by the files being written, and by 1 / 64 for each process. A failure is
    logged and is no error: weights are then quantised as if there were no cache.
    """

    def __init__(self, directory: Path, max_bytes: int, given: Mapping[str, Path] = _NONE) -> None:
        """Use `directory`, which is created with the first file. With `max_bytes` 0 nothing is stored.

        `given` adds files of weights that other devices have quantised, by the digest of their keys.
        """
        self.directory = directory
        self._given = given
        self.max_bytes = max_bytes
        self._enabled = max_bytes > 0
        self._room = 0  # bytes that may be stored before the directory is read again
        self._guard = threading.Lock()
        self._space = CacheSpace(CacheLimits(directory.parent, max_bytes), directory)

    @classmethod
    def configured(
        cls, directory: str | None = None, gib: float | None = None, given: Mapping[str, Path] = _NONE
    ) -> QuantCache:
        """A cache whose missing settings come from the environment or else from the defaults."""
        limits = CacheLimits.configured(directory, gib)
        return cls(limits.root / QUANTISED, limits.max_bytes, given)

    def content(self, file: Path, name: str, compute: Callable[[], str]) -> str:
        """The content digest of a tensor in a file, which is stored for as long as the file does not change.

        `compute` reads the whole tensor and returns the digest.
        """
        if not self._enabled:
            return compute()
        real = file.resolve()
        noted = {"what": "SHA-256 of dtype, shape and SHA-256", "path": str(real), "name": name}
        noted |= asdict(FileState.of(real))
        key = hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()
        path = self.directory / f"{key}.source"
        try:
            known = path.read_text(encoding="ascii")
            if is_digest(known):
                touch(path)
                return known
            _log.warning(_DAMAGED, path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _log.warning(_UNREADABLE, path, error)
        content = compute()
        self._store(path, lambda partial: partial.write_text(content, encoding="ascii"), len(content))
        return content

    def get(self, key: CacheKey, *, gives_back: bool = False) -> Tensors | None:
        """The encoded weight; None when the cache does not hold it, or its file is damaged.

        gives_back: whether the page cache of the file is freed when the file was read.
        """
        if not self._enabled:
            return None
        path = self._given.get(key.digest) or self.path(key)
        try:
            file = WeightFile(path)
            tensors, found = _read_hashed(file)
            digest = file.metadata.get(_DIGEST)
            if gives_back:
                file.drop_cached()
            file.close()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning(_UNREADABLE, path, error)
            return None
        if digest != found:
            _log.warning(_DAMAGED, path)
            return None
        touch(path)
        return tensors

    def encoded(self, key: CacheKey, encode: Callable[[], Tensors], *, gives_back: bool = False) -> Tensors:
        """The encoded weight, from the cache (see `get`) or else from `encode`, whose result is stored."""
        tensors = self.get(key, gives_back=gives_back)
        if tensors is None:
            tensors = encode()
            self.put(key, tensors)
        return tensors

    def put(self, key: CacheKey, tensors: Tensors) -> None:
        """Store an encoded weight; the least recently used files make room where necessary."""
        if not self._enabled:
            return
        metadata = {_DIGEST: tensors_digest(tensors)}
        size = HEADER_BYTES + sum(tensor.nbytes for tensor in tensors.values())
        self._store(self.path(key), lambda partial: save_file(tensors, partial, metadata), size)

    def path(self, key: CacheKey) -> Path:
        """The file of a key's weight, whether it exists or not."""
        return self.directory / f"{key.digest}.safetensors"

    def _free_for_file(self, size: int) -> bool:
        """Make room for a file; the directory is read once for many files, as its reading takes long."""
        with self._guard:
            if size > self._room:
                with self._space.lock():
                    left = self._space.free_and_count(size)
                if left is None:
                    return False
                self._room = size + min(left, self.max_bytes // _UNREAD_PART)
            self._room -= size
            return True

    def _store(self, path: Path, write: Callable[[Path], object], size: int) -> None:
        if size > self.max_bytes:
            return
        # Renamed when complete, so that readers see the whole file or none.
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{WRITING}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._free_for_file(size):
                return
            write(partial)
            partial.replace(path)
        # safetensors has an error class of its own for a full disk.
        except Exception as error:  # noqa: BLE001 (the weight is usable, whatever prevented its storage)
            self._enabled = False
            _log.warning("quantised weights are no longer cached in %s: %s", self.directory, error)
            remove(partial)


def _read_hashed(file: WeightFile) -> tuple[Tensors, str]:
    """The tensors of a file, each byte of which is hashed as soon as it is read; the `tensors_digest`."""
    tensors, digest = {}, hashlib.sha256()
    for name in sorted(file):
        stored = file[name].blocks
        digest.update(_title(name, stored.dtype, stored.shape))
        tensors[name] = stored.read(digest.update)
    return tensors, digest.hexdigest()


def _title(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """The bytes that precede a tensor's own bytes in `tensors_digest`."""
    return f"\0{name}\0{dtype}\0{list(shape)}\0".encode()


def tensors_digest(tensors: Tensors) -> str:
    """The SHA-256 of tensors with their names, dtypes and shapes, in hex."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(_title(name, tensor.dtype, tensor.shape))
        digest.update(byte_view(tensor.contiguous()))
    return digest.hexdigest()


def content_digest(dtype: torch.dtype, shape: Sequence[int], chunks: Iterable[torch.Tensor]) -> str:
    """The `content` of a CacheKey, for a weight that comes a few rows at a time, in order."""
    digest = hashlib.sha256()
    for rows in chunks:
        digest.update(byte_view(rows.contiguous()))
    return content_of(dtype, shape, digest.hexdigest())


def content_of(dtype: torch.dtype, shape: Sequence[int], sha256: str) -> str:
    """The `content` of a CacheKey, for a weight whose bytes have the digest `sha256`."""
    return hashlib.sha256(f"{dtype} {list(shape)}\0{sha256}".encode()).hexdigest()
