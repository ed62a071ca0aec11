"""The choice of one GGUF model in a directory or hub id. An idle agent imports this module."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf.split_files import SUFFIX, stem_of

# Files beside a model: the vision part of a multimodal model, and statistics that a quantiser used.
SIDE_FILES = ("*mmproj*", "*imatrix*")
QUANTISATION = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
_PART = f"-{'[0-9]' * 5}-of-{'[0-9]' * 5}"
_SHOWN = 12  # models that an error lists


def patterns_of(quantisation: str) -> list[str]:
    """The patterns, as of fnmatch, of files whose names state a quantisation, like x-Q4_K_M.gguf."""
    return [
        f"*[-._]{spelling}{part}{SUFFIX}"
        for spelling in dict.fromkeys((quantisation.upper(), quantisation.lower()))
        for part in ("", _PART)
    ]


def only_model_in(directory: Path) -> Path | None:
    """The first file of the only GGUF model in a directory; None if there is no model.

    Raises:
        CheckpointError: when there are several models.
    """
    models = _models(directory, f"*{SUFFIX}")
    if len(models) > 1:
        raise _several(directory, models)
    return next((paths[0] for paths in models.values()), None)


def model_stating(directory: Path, quantisation: str) -> Path:
    """The first file of the GGUF model whose name states a quantisation, in a directory or its folders.

    Raises:
        CheckpointError: when there are several such models, or none.
    """
    models = _models(directory, f"**/*{SUFFIX}")
    wanted = re.compile(rf".*[-._]{re.escape(quantisation)}", re.IGNORECASE)
    found = {stem: paths for stem, paths in models.items() if wanted.fullmatch(stem.name)}
    if not found:
        raise CheckpointError(
            f"{directory}: no GGUF model states the quantisation {quantisation} in its name; the models are: "
            f"{_names(models, directory) or 'none'}"
        )
    if len(found) > 1:
        raise _several(directory, found)
    return next(iter(found.values()))[0]


def _models(directory: Path, pattern: str) -> dict[Path, list[Path]]:
    """The files of each model in a directory, in order, by the model's path without suffix and number."""
    models: dict[Path, list[Path]] = defaultdict(list)
    for path in sorted(directory.glob(pattern)):
        if not any(path.match(side_file) for side_file in SIDE_FILES):
            models[path.with_name(stem_of(path.name))].append(path)
    return models


def _several(directory: Path, models: dict[Path, list[Path]]) -> CheckpointError:
    return CheckpointError(
        f"{directory}: holds several GGUF models: {_names(models, directory)}; give the path of one file, or "
        "append the quantisation in its name, like :Q4_K_M"
    )


def _names(models: dict[Path, list[Path]], directory: Path) -> str:
    names = [str(paths[0].relative_to(directory)) for paths in models.values()]
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
