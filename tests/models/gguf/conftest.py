"""GGUF files of the first layers of the bundled model, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gguf_files import write_gguf
from tests.support.truncated import first_layers

Bundled = Callable[[str], Path]


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model without its other layers."""
    return first_layers(tmp_path_factory.mktemp("two-layers"), 2)


@pytest.fixture(scope="session")
def bundled_gguf(tmp_path_factory: pytest.TempPathFactory, two_layers: Path) -> Bundled:
    """bundled_gguf(kind) -> the file of `two_layers` with its matrices stored as `kind`."""
    directory, written = tmp_path_factory.mktemp("gguf"), set()

    def get(kind: str) -> Path:
        path = directory / f"{kind}.gguf"
        if kind not in written:
            write_gguf(path, two_layers, kind=kind)
            written.add(kind)
        return path

    return get
