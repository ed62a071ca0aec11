"""Checkpoints of other families than the bundled one's, through the command line and real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.test_tokenizer import byte_level
from tests.models.tiny_families import make_tiny


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen3_moe"])
def test_generate_with_the_check(tmp_path: Path, name: str) -> None:
    make_tiny(tmp_path, name, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    model = ["--model", str(tmp_path), "--drafter", "none", "--strategy", "autoregressive"]
    prompt = ["--prompt", "The quick brown fox jumps", "--max-new-tokens", "24"]
    sampling = ["--temperature", "0.8", "--seed", "3"]
    command = [sys.executable, "-m", "flowedge.cli.main", "generate", "--stages", "2", "--check"]
    done = subprocess.run(
        [*command, *model, *prompt, *sampling], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "check: the output is identical to the plain model's" in done.stdout + done.stderr
