"""Finished runs on disk, each a file of its key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.record import RunRecord
from flowedge_testbed.trace import Trace

Stored = TypeVar("Stored")


def record_file(directory: Path, key: str) -> Path:
    return directory / "runs" / f"{key}.json"


def read_record(directory: Path, key: str) -> RunRecord | None:
    """Return the stored run of this key; None if it does not exist or cannot be read."""
    return _read(record_file(directory, key), RunRecord.from_dict)


def read_load_record(directory: Path, key: str) -> LoadRecord | None:
    """Return the stored load point of this key; None if it does not exist or cannot be read."""
    return _read(record_file(directory, key), LoadRecord.from_dict)


def trace_file(directory: Path, key: str) -> Path:
    return directory / "traces" / f"{key}.json"


def read_trace(directory: Path, key: str) -> Trace | None:
    """Return the stored trace of this run; None if it does not exist or cannot be read."""
    return _read(trace_file(directory, key), Trace.from_dict)


def _read(file: Path, from_dict: Callable[[dict[str, Any]], Stored]) -> Stored | None:
    """Return what a JSON file holds; None if it does not exist or cannot be read."""
    try:
        return from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(file)
