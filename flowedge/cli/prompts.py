"""Prompts from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.core.utf8 import checked_utf8
from flowedge.system.json_lines import read_json_lines


def read_prompts(prompt: str | None, file: Path | None, limit: int | None) -> list[str]:
    """Return the prompt that is given, or the first `limit` prompts of a JSON-lines file.

    A line of the file is an object with "prompt", or with "turns", of which the first is used.

    Raises:
        BadRequestError: when not exactly one source is given, or a line is wrong; it names the line.
    """
    if (prompt is None) == (file is None):
        raise BadRequestError("give either --prompt or --prompts FILE.jsonl")
    if prompt is not None:
        return [_usable(prompt, "--prompt")]
    assert file is not None
    prompts = [_usable(_prompt_of(entry, where), where) for where, entry in read_json_lines(file)]
    if not prompts:
        raise BadRequestError(f"{file}: the file has no prompt")
    return prompts[:limit]


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
    return checked_utf8(prompt, f"{where}: the prompt")
