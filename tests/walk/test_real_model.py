"""README's small real model from the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub import hub
from tests.support.smollm2 import make_smollm2
from tests.walk.documents import commands
from tests.walk.machine import UserMachine


@pytest.mark.proof
def test_a_small_real_model_from_the_hub(tmp_path: Path) -> None:
    """The hub is on loopback, and its models have the published shapes with fewer layers."""
    activate, generate = commands("README.md", "**A small real model**", "PyTorch is installed")
    assert activate == "source .venv/bin/activate"
    sizes = {f"HuggingFaceTB/SmolLM2-{size}-Instruct": size for size in ("360M", "135M")}
    repositories = {name: tmp_path / size for name, size in sizes.items()}
    for name, directory in repositories.items():
        directory.mkdir()
        make_smollm2(directory, sizes[name])
    with hub(repositories) as endpoint:
        online = UserMachine(tmp_path, {"HF_ENDPOINT": endpoint}, cold=True)
        assert online.works(f"{generate} --max-new-tokens 8").out.strip()
