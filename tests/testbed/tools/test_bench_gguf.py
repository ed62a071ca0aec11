"""The tool that measures GGUF files: repacking is nearer to the file than another quantisation."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.models.checkpoint.checkpoint import Checkpoint
from testbed.tools.bench_gguf import measure
from tests.support.gguf_files import write_gguf


@pytest.mark.parametrize(("kind", "repacked"), [("Q4_1", True), ("Q6_K", False)])
def test_errors_by_type(tmp_path: Path, kind: str, repacked: bool) -> None:
    [row] = measure(Checkpoint.open(str(write_gguf(tmp_path / "x.gguf", kind=kind))), 1)
    name, speed, kept, again = row
    assert name == kind and float(speed) > 0
    assert (float(kept) < 0.1 * float(again)) if repacked else (kept == again)
