"""The files of a GGUF model, which may be split into several. An idle agent imports this module."""

from __future__ import annotations

import re
from pathlib import Path

from flowedge.core.errors import CheckpointError

SUFFIX = ".gguf"
MAX_PARTS = 999
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def files_of(path: Path) -> tuple[Path, ...]:
    """The files of the model that a file belongs to, in order.

    A split model has files named like name-00001-of-00003.gguf, and any of them names the model.

    Raises:
        CheckpointError: when a file of a split model is missing.
    """
    paths = tuple(path.with_name(name) for name in file_names(path.name))
    for each in paths:
        if not each.is_file():
            raise CheckpointError(
                f"{path}: {each.name}, another file of the same model, is missing beside it"
            )
    return paths


def file_names(name: str) -> tuple[str, ...]:
    """The names of all files of the model that a file of this name belongs to, in order."""
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    stem, count = match["stem"], int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        raise CheckpointError(f"{name} is not the name of one of 1 to {MAX_PARTS} files of a split model")
    return tuple(f"{stem}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1))


def stem_of(name: str) -> str:
    """The name of the model that a file of this name belongs to: without the suffix and the file's number."""
    match = _PART.fullmatch(name)
    return name.removesuffix(SUFFIX) if match is None else match["stem"]
