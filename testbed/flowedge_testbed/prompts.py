"""The prompts of a scenario's datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import flowedge
from flowedge.cli.prompts import read_prompts
from flowedge.core.errors import BadRequestError

OWN = "bundled"  # the name of the project's own prompt set
OWN_FILE = Path(flowedge.__file__).parent / "bundled" / "prompts.jsonl"


@dataclass(frozen=True)
class Dataset:
    """Prompts as tokens.

    Attributes:
        left_out: prompts that came before the last one used and are too long for the model.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    left_out: int


def dataset_files(datasets: Mapping[str, str], directory: Path) -> tuple[dict[str, Path], list[str]]:
    """The files to read and the names of those that are missing.

    With none of them there, the project's own prompts take their place, under their own name.
    """
    files = {name: directory / file for name, file in datasets.items()}
    missing = [name for name, file in files.items() if not file.is_file()]
    if len(missing) == len(files):
        return {OWN: OWN_FILE}, missing
    return {name: file for name, file in files.items() if name not in missing}, missing


def read_dataset(
    name: str, file: Path, samples: int, max_tokens: int, encode: Callable[[str], tuple[int, ...]]
) -> Dataset:
    """The first `samples` prompts of at most `max_tokens` tokens. BadRequestError when there is none."""
    prompts: list[tuple[int, ...]] = []
    left_out = 0
    for text in read_prompts(None, file, None):
        if len(prompts) == samples:
            break
        ids = encode(text)
        if len(ids) > max_tokens:
            left_out += 1
        else:
            prompts.append(ids)
    if not prompts:
        raise BadRequestError(f"{file}: no prompt of at most {max_tokens} tokens in it")
    return Dataset(name, tuple(prompts), left_out)
