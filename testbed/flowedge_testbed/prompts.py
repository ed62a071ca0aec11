"""The prompts of a scenario's datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import flowedge
from flowedge.cli.prompts import read_message_lines
from flowedge.core.errors import BadRequestError

OWN = "bundled"  # the name of the project's own prompt set
OWN_FILE = Path(flowedge.__file__).parent / "bundled" / "prompts.jsonl"


@dataclass(frozen=True)
class Dataset:
    """Prompts as tokens.

    Attributes:
        left_out: number of prompts before the last one used that are too long for the model.
        turns: the user's messages of each prompt's conversation, the prompt's own first.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    left_out: int
    turns: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class PromptChoice:
    """Which prompts of a file are used, as a scenario says it.

    Attributes:
        skip: prompts at the beginning of the file that are not used.
        turns: most turns of a conversation.
    """

    samples: int
    skip: int = 0
    turns: int = 1


def dataset_files(datasets: Mapping[str, str], directory: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the files to read, by dataset, and the names of the datasets whose file is missing.

    The file `bundled` is that of the project's own prompts. If all are missing, these take their place,
    under their own name.
    """
    files = {name: OWN_FILE if file == OWN else directory / file for name, file in datasets.items()}
    missing = [name for name, file in files.items() if not file.is_file()]
    if len(missing) == len(files):
        return {OWN: OWN_FILE}, missing
    return {name: file for name, file in files.items() if name not in missing}, missing


def read_dataset(
    name: str, file: Path, choice: PromptChoice, max_tokens: int, encode: Callable[[str], tuple[int, ...]]
) -> Dataset:
    """Read the first prompts of at most `max_tokens` tokens behind those that are skipped.

    Raises:
        BadRequestError: when no prompt is left, or none is short enough.
    """
    lines = read_message_lines(file, choice.turns)
    if choice.skip >= len(lines):
        raise BadRequestError(f"{file} has {len(lines)} prompts, and skip is {choice.skip}: none is left")
    prompts: list[tuple[int, ...]] = []
    turns: list[tuple[str, ...]] = []
    left_out = 0
    for line in lines[choice.skip :]:
        if len(prompts) == choice.samples:
            break
        ids = encode(line[0])
        if len(ids) > max_tokens:
            left_out += 1
        else:
            prompts.append(ids)
            turns.append(line)
    if not prompts:
        raise BadRequestError(f"{file}: every prompt has more than {max_tokens} tokens; give shorter prompts")
    return Dataset(name, tuple(prompts), left_out, tuple(turns))
