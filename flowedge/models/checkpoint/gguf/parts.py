"""The files of a GGUF model, which may be split into several. An idle agent imports this module."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from flowedge.core.errors import CheckpointError

SUFFIX = ".gguf"
MAX_PARTS = 999
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of the model that a file belongs to, in order.

    A split model has files named like name-00001-of-00003.gguf, and any of them names the model.

    Raises:
        CheckpointError: when a file of a split model is missing.
    """
    paths = tuple(path.with_name(name) for name in part_names(path.name))
    for each in paths:
        if not each.is_file():
            raise CheckpointError(
                f"{path}: {each.name}, another file of the same model, is missing beside it"
            )
    return paths


def part_names(name: str) -> tuple[str, ...]:
    """The names of all files of the model that a file of this name belongs to, in order."""
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    stem, count = match["stem"], int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        raise CheckpointError(f"{name} is not the name of one of 1 to {MAX_PARTS} files of a split model")
    return tuple(f"{stem}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1))


def only_model_in(directory: Path) -> Path | None:
    """The first file of the only GGUF model in a directory; None if there is no model.

    Raises:
        CheckpointError: when there are several models.
    """
    models: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        match = _PART.fullmatch(path.name)
        models[path.name if match is None else match["stem"]].append(path)
    if len(models) > 1:
        names = ", ".join(paths[0].name for paths in models.values())
        raise CheckpointError(f"{directory}: holds several GGUF models: {names}; give the path of one file")
    return next((paths[0] for paths in models.values()), None)
