"""The config and the tokenizer of GGUF models as files, in a directory of this process."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf.gguf_model import GGUFModel

_PREFIX = "flowedge-gguf-"


@dataclass
class ModelFiles:
    """The directory of a GGUF model's small files, which is deleted when the process ends.

    Attributes:
        paths: the GGUF files.
        has_tokenizer: whether the tokenizer's files were written.
    """

    paths: tuple[Path, ...]
    directory: Path
    has_tokenizer: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)

    def add_tokenizer(self) -> None:
        """Write the tokenizer's files, unless that was done before.

        Raises:
            CheckpointError: when the file's tokenizer cannot be converted.
        """
        # transformers is imported when a tokenizer is needed: a stage needs none.
        try:
            from flowedge.models.gguf.tokenizer_files import write_tokenizer  # noqa: PLC0415
        except ImportError as error:
            raise CheckpointError(
                f"{self.paths[0]}: converting its tokenizer needs transformers 5.20 or later ({error}); "
                "install that, or give a tokenizer by --tokenizer DIR"
            ) from error
        with self.guard:
            if not self.has_tokenizer:
                write_tokenizer(GGUFModel(self.paths), self.directory)
                self.has_tokenizer = True


class _Converted:
    """The GGUF models that this process has opened, by the state of their files."""

    def __init__(self) -> None:
        self._by_state: dict[tuple[object, ...], ModelFiles] = {}
        self._by_directory: dict[Path, ModelFiles] = {}
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._guard = threading.Lock()

    def files_of(self, paths: Sequence[Path]) -> ModelFiles:
        # Links are not followed: the files of the hub's cache are links to files without a telling name.
        named = tuple(path.absolute() for path in paths)
        with self._guard:
            try:
                state = (named, *((stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, named)))
            except OSError as error:
                raise CheckpointError(f"{paths[0]}: cannot be read: {error}") from error
            known = self._by_state.get(state)
            if known is None:
                known = ModelFiles(named, self._write(GGUFModel(named)))
                self._by_state[state] = self._by_directory[known.directory] = known
            return known

    def of_directory(self, directory: Path) -> ModelFiles | None:
        return self._by_directory.get(directory)

    def _write(self, model: GGUFModel) -> Path:
        config, generation = model.config()
        try:
            if self._root is None:
                self._root = tempfile.TemporaryDirectory(prefix=_PREFIX)
            directory = Path(self._root.name) / f"{len(self._by_state)}" / model.path.stem
            directory.mkdir(parents=True)
            _write_json(directory / "config.json", config)
            _write_json(directory / "generation_config.json", generation)
        except OSError as error:
            raise CheckpointError(
                f"{model.path}: its config cannot be written to a temporary directory: {error}; set TMPDIR "
                "to a directory with free space"
            ) from error
        return directory


_converted = _Converted()


def model_files(paths: Sequence[Path]) -> ModelFiles:
    """The small files of the GGUF model in `paths`, which are made when the process opens it first.

    Raises:
        CheckpointError: when the model cannot be read or is not supported.
    """
    return _converted.files_of(paths)


def files_in(directory: Path) -> ModelFiles | None:
    """The GGUF model that a directory was made for by `model_files`; None for other directories."""
    return _converted.of_directory(directory)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True), encoding="utf-8")
