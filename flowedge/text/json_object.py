"""JSON objects in the files of a model, which are untrusted data."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from flowedge.core.errors import CheckpointError, FlowEdgeError

_MAX_BYTES = 16 << 20  # of a file; the largest indices of shards have about 10 MiB
_MAX_DEPTH = 32  # of objects and arrays in each other; libraries copy configs recursively
_REASON_LENGTH = 400  # characters of another library's message that are passed on
_OUT_OF_MEMORY = "OutOfMemoryError"  # torch's, which is not imported here
_RUST_PANIC = "PanicException"  # which Python's bindings of Rust libraries derive from BaseException


def check_is_file(path: Path) -> int:
    """Return the size of a file of a model, in bytes.

    Opening a named pipe or a device could wait for ever, or read without an end.

    Raises:
        CheckpointError: when the path is there and is no regular file.
        OSError: when nothing is there.
    """
    found = path.stat()
    for is_kind, kind in (
        (stat.S_ISFIFO, "a named pipe (FIFO)"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISDIR, "a directory"),
    ):
        if is_kind(found.st_mode):
            raise CheckpointError(f"{path}: is {kind}; the files of a model are regular files")
    return found.st_size


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model.

    Raises:
        CheckpointError: when the file cannot be read, is too large or too deep, or holds something else.
    """
    try:
        if (size := check_is_file(path)) > _MAX_BYTES:
            raise CheckpointError(f"{path}: has {size} bytes, more than {_MAX_BYTES >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {short_reason(error)}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    if is_nested_deeper(content, _MAX_DEPTH):
        raise CheckpointError(f"{path}: nests objects and arrays deeper than {_MAX_DEPTH} levels")
    return content


@contextmanager
def errors_of_file(place: Path | str, problem: str) -> Iterator[None]:
    """Turn any error of a library that reads a model's files into a CheckpointError.

    The libraries were written for valid files: on others they fail with errors of any type.

    Args:
        place: the file or directory to name in the error; problem: what is wrong with it.

    Raises:
        CheckpointError: when the body raises an error that is not of FlowEdge, nor of a full GPU.
    """
    try:
        yield
    except FlowEdgeError:
        raise
    except Exception as error:
        if type(error).__name__ == _OUT_OF_MEMORY:  # the device's, which is no fault of the file
            raise
        raise CheckpointError(f"{place}: {problem}: {short_reason(error)}") from error
    except BaseException as error:
        if type(error).__name__ != _RUST_PANIC:
            raise
        raise CheckpointError(f"{place}: {problem}: {short_reason(error)}") from error


def short_reason(error: BaseException) -> str:
    """The message of another library's error: one line of at most 400 printable characters."""
    text = str(error) or type(error).__name__
    if not isinstance(error, OSError | ValueError):
        text = f"{type(error).__name__}: {text}"
    line = " ".join(text[: 4 * _REASON_LENGTH].split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_REASON_LENGTH]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def is_nested_deeper(content: object, most: int) -> bool:
    """Return whether objects and arrays of a JSON value are in each other on more than `most` levels."""
    level: list[object] = [content]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
