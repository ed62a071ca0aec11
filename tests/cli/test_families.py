"""Checkpoints of other families than the bundled one's, through the command line and real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.cli.main import run
from tests.models.tiny_families import make_tiny
from tests.support.processes import AgentProcess
from tests.text.test_tokenizer import byte_level


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen3_moe"])
def test_generate_with_the_check(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make_tiny(tmp_path, name, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    model = ["--model", str(tmp_path), "--drafter", "none", "--strategy", "autoregressive"]
    prompt = ["--prompt", "The quick brown fox jumps", "--max-new-tokens", "24"]
    sampling = ["--temperature", "0.8", "--seed", "3"]
    peers = ",".join(agent.address for agent in idle_agents[:3])
    assert run(["generate", "--peers", peers, "--check", *model, *prompt, *sampling]) == 0
    assert "check: the output is identical to the plain model's" in capsys.readouterr().err
