"""JSON objects in the files of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model.

    Raises:
        CheckpointError: when the file cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content
