"""GGUF files of the bundled model, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gguf_files import write_gguf

Bundled = Callable[[str], Path]


@pytest.fixture(scope="session")
def bundled_gguf(tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    """bundled_gguf(kind) -> the file of the bundled model with its matrices stored as `kind`."""
    directory, written = tmp_path_factory.mktemp("gguf"), set()

    def get(kind: str) -> Path:
        path = directory / f"{kind}.gguf"
        if kind not in written:
            write_gguf(path, kind=kind)
            written.add(kind)
        return path

    return get
