"""Quantised weights on disk, so that the next start of the same model does not quantise again."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file

from flowedge.models.checkpoint.weight_file import WeightFile, byte_view
from flowedge.models.quant.backend import Tensors
from flowedge.storage.limits import CacheLimits
from flowedge.storage.space import QUANTISED, WRITING, CacheSpace, remove, touch

_NONE: Mapping[str, Path] = MappingProxyType({})
HEADER_BYTES = 4096  # that a file takes beside its tensors, at most
_DIGEST = "sha256"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceTensor:
    """A tensor in a file, known by what tells that the file has not changed since.

    Attributes:
        path: resolved; size: of the file, in bytes; modified_ns: of the file, in ns since the epoch.
    """

    path: str
    inode: int
    size: int
    modified_ns: int
    name: str

    @classmethod
    def of(cls, path: Path, name: str) -> SourceTensor:
        """OSError when the file is gone."""
        real = path.resolve()
        found = real.stat()
        return cls(str(real), found.st_ino, found.st_size, found.st_mtime_ns, name)


@dataclass(frozen=True)
class CacheKey:
    """What an encoded weight depends on; two with the same key are the same.

    Attributes:
        content: SHA-256 of the weight before it was quantised, its shape and dtype included.
        precision: the dtype it was rounded to before; "" where that changed nothing.
        format: of the backend.
    """

    content: str
    precision: str
    quant: str
    format: str

    @property
    def digest(self) -> str:
        """A file name."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class QuantCache:
    """Files in one directory, which share the room of the cache with what else is kept beside it.

    Any number of processes may use one directory; while several write, it may be over its size by what they
    write. What was not used for longest is dropped. Nothing that goes wrong with it is an error: it is
    logged, and weights are quantised as if there were no cache.
    """

    def __init__(self, directory: Path, max_bytes: int, given: Mapping[str, Path] = _NONE) -> None:
        """The directory is made when something is first stored; with `max_bytes` 0 nothing ever is.

        given: files of weights that others have quantised, by the digest of their keys.
        """
        self.directory = directory
        self._given = given
        self.max_bytes = max_bytes
        self._enabled = max_bytes > 0
        self._space = CacheSpace(CacheLimits(directory.parent, max_bytes), directory)

    @classmethod
    def configured(
        cls, directory: str | None = None, gib: float | None = None, given: Mapping[str, Path] = _NONE
    ) -> QuantCache:
        """What is not given is taken from the environment, then from the defaults.

        FLOWEDGE_CACHE_DIR and FLOWEDGE_CACHE_GIB; ~/.cache/flowedge (or XDG_CACHE_HOME's) and 16 GiB.
        BadRequestError when the size is no number, or below 0.
        """
        limits = CacheLimits.configured(directory, gib)
        return cls(limits.root / QUANTISED, limits.max_bytes, given)

    def content(self, source: SourceTensor, compute: Callable[[], str]) -> str:
        """The content of a source tensor, remembered for as long as its file does not change.

        compute: gives the SHA-256; it reads the whole tensor.
        """
        if not self._enabled:
            return compute()
        noted = {"what": "SHA-256 of dtype, shape and SHA-256", **asdict(source)}
        name = hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()
        path = self.directory / f"{name}.source"
        try:
            known = path.read_text(encoding="ascii")
            if len(known) == hashlib.sha256().digest_size * 2:
                touch(path)
                return known
            _log.warning("the cached %s is damaged and is made again", path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _log.warning("the cached %s cannot be read and is made again: %s", path, error)
        content = compute()
        self._store(path, lambda partial: partial.write_text(content, encoding="ascii"), len(content))
        return content

    def get(self, key: CacheKey) -> Tensors | None:
        """The encoded weight; None when it is not there, or is damaged, which is logged."""
        if not self._enabled:
            return None
        path = self._given.get(key.digest) or self.path(key)
        try:
            file = WeightFile(path)
            tensors = {name: stored[...] for name, stored in file.items()}
            digest = file.metadata.get(_DIGEST)
            file.close()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("the cached %s cannot be read and is made again: %s", path, error)
            return None
        if digest != tensors_digest(tensors):
            _log.warning("the cached %s is damaged and is made again", path)
            return None
        touch(path)
        return tensors

    def encoded(self, key: CacheKey, encode: Callable[[], Tensors]) -> Tensors:
        """The encoded weight: what is stored, or what `encode` gives, which is stored then."""
        tensors = self.get(key)
        if tensors is None:
            tensors = encode()
            self.put(key, tensors)
        return tensors

    def put(self, key: CacheKey, tensors: Tensors) -> None:
        """Stores an encoded weight, and drops what was not used for longest when there is too much."""
        if not self._enabled:
            return
        metadata = {_DIGEST: tensors_digest(tensors)}
        size = HEADER_BYTES + sum(tensor.nbytes for tensor in tensors.values())
        self._store(self.path(key), lambda partial: save_file(tensors, partial, metadata), size)

    def path(self, key: CacheKey) -> Path:
        """Where the weight of a key is stored, or would be."""
        return self.directory / f"{key.digest}.safetensors"

    def _store(self, path: Path, write: Callable[[Path], object], size: int) -> None:
        """Readers see the whole file or none: it is written under another name."""
        if size > self.max_bytes:
            return
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{WRITING}")
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._space.lock():
                has_room = self._space.make_room(size)
            if not has_room:  # the rest is in use
                return
            write(partial)
            partial.replace(path)
        # safetensors has an error of its own for a full disk.
        except Exception as error:  # noqa: BLE001 (whatever keeps it from being stored, the weight is there)
            self._enabled = False
            _log.warning("quantised weights are not cached in %s from here on: %s", self.directory, error)
            remove(partial)


def tensors_digest(tensors: Tensors) -> str:
    """SHA-256 of tensors with their names, dtypes and shapes, in hex."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        update_digest(digest, tensor)
    return digest.hexdigest()


def content_digest(dtype: torch.dtype, shape: Sequence[int], chunks: Iterable[torch.Tensor]) -> str:
    """The content of a CacheKey: of a weight [shape] of `dtype` that comes some rows at a time, in order."""
    digest = hashlib.sha256()
    for rows in chunks:
        update_digest(digest, rows)
    return content_of(dtype, shape, digest.hexdigest())


def content_of(dtype: torch.dtype, shape: Sequence[int], sha256: str) -> str:
    """The same for a weight of whose bytes the SHA-256 is known."""
    return hashlib.sha256(f"{dtype} {list(shape)}\0{sha256}".encode()).hexdigest()


def update_digest(digest: hashlib._Hash, tensor: torch.Tensor) -> None:
    """Adds a tensor's bytes, in row order."""
    digest.update(byte_view(tensor.contiguous()))
