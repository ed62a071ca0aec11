"""Reads YAML files into typed documents."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.model import YamlDocument

D = TypeVar("D", bound=YamlDocument)


def read_document(path: Path, kind: type[D]) -> D:
    """Read the document in a file.

    Raises:
        BadRequestError: when it cannot be read; it names the file, the key and the reason.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadRequestError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadRequestError(f"{path}: holds no keys")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BadRequestError(f"{path}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Return every key that is wrong, with its value and the reason."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(whole)"
        found = "" if problem["type"] == "missing" else f" (found {_short(problem['input'])})"
        problems.append(f"key {key}: {problem['msg'].removeprefix('Value error, ')}{found}")
    return "; ".join(problems)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
