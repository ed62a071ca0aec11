"""Examples of counting, which a tiny head learns in a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [{"prompt": f"Count to {n}.", "response": " ".join(map(str, range(1, n)))} for n in range(5, 13)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file
