"""An EAGLE-3 head through the command line and real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.drafting.conftest import save_small_lm
from tests.drafting.eagle3_files import save_eagle3_head


@pytest.mark.slow
def test_generate_with_the_check(tmp_path: Path) -> None:
    model, head = tmp_path / "model", tmp_path / "head"
    save_small_lm(model, num_hidden_layers=8)
    save_eagle3_head(head, hidden=32, vocab=4096, draft_vocab=1000)
    command = [sys.executable, "-m", "flowedge.cli.main", "generate", "--stages", "2", "--check"]
    models = ["--model", str(model), "--drafter", str(head), "--strategy", "auto"]
    prompt = ["--prompt", "The quick brown fox jumps", "--max-new-tokens", "24"]
    sampling = ["--temperature", "0.8", "--seed", "3"]
    done = subprocess.run(
        [*command, *models, *prompt, *sampling], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "check: the output is identical to the plain model's" in done.stdout + done.stderr
