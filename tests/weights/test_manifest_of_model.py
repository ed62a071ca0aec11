"""Making the manifest of a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.weights.manifest_of_model import KNOWN, describe


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_hashes_that_root_may_not_store_are_only_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container, whose volume belongs to a user of the host."""
    os.chown(tmp_path, 64_321, 64_321)
    described = describe(Checkpoint.open("bundled"), tmp_path)
    assert described.manifest.tensors
    assert "root does not write there" in caplog.text
    assert list((tmp_path / KNOWN).iterdir()) == []
