"""Prompts from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowedge.errors import BadRequestError


def read_prompts(prompt: str | None, file: Path | None, limit: int | None) -> list[str]:
    """The prompts to answer: the one given, or those of a JSON-lines file, at most `limit` of them.

    A line of the file is an object with "prompt", or with "turns", of which the first is used.
    BadRequestError says which line is wrong, and how.
    """
    if (prompt is None) == (file is None):
        raise BadRequestError("give either --prompt or --prompts FILE.jsonl")
    if prompt is not None:
        return [_usable(prompt, "--prompt")]
    assert file is not None
    prompts = _read_file(file)
    if not prompts:
        raise BadRequestError(f"{file}: there is no prompt in it")
    return prompts[:limit]


def _read_file(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{file}: cannot be read: {error}") from error
    return [_read_line(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _read_line(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BadRequestError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise BadRequestError(f"{where}: not a JSON object")
    return _usable(_prompt_of(entry, where), where)


def _prompt_of(entry: dict[str, Any], where: str) -> Any:
    if "prompt" in entry:
        return entry["prompt"]
    turns = entry.get("turns")
    if isinstance(turns, list) and turns:
        return turns[0]
    raise BadRequestError(f'{where}: the object has neither "prompt" nor "turns"')


def _usable(prompt: Any, where: str) -> str:
    if not isinstance(prompt, str):
        raise BadRequestError(f"{where}: the prompt is not text")
    if not prompt.strip():
        raise BadRequestError(f"{where}: the prompt is empty")
    return prompt
