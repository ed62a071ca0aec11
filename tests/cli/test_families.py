"""Models of other families than the bundled one, and an EAGLE-3 head, with the command and real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.cli.main import run
from tests.drafting.block_files import save_block_head
from tests.drafting.conftest import save_small_lm
from tests.drafting.eagle3_files import save_eagle3_head
from tests.drafting.mtp_files import make_mtp
from tests.drafting.parallel_files import save_parallel_head
from tests.models.tiny_families import make_tiny
from tests.support.breadth import dealt
from tests.support.processes import AgentProcess
from tests.text.test_tokenizer import byte_level


def checked(agents: list[AgentProcess], *models: str) -> int:
    """Generate on three agents by sampling, and check the answer."""
    peers = ",".join(agent.address for agent in agents[:3])
    prompt = ["--prompt", "The quick brown fox jumps", "--max-new-tokens", "24"]
    return run(
        ["generate", "--peers", peers, "--check", *models, *prompt, "--temperature", "0.8", "--seed", "3"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", dealt(["gemma3", "qwen3_moe"], {"qwen3_moe"}.__contains__))
def test_generate_with_the_check(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make_tiny(tmp_path, name, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    model = ["--model", str(tmp_path), "--drafter", "none", "--strategy", "autoregressive"]
    assert checked(idle_agents, *model) == 0
    assert "check: the output is identical to the plain model's" in capsys.readouterr().err


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"),
    dealt(
        [
            ("qwen3_5_moe", "none"),
            ("qwen3_next", "int8"),
            ("lfm2_moe", "int4"),
            ("granitehybrid-experts", "int8"),
            ("nemotron_h", "none"),
            ("glm4_moe_lite", "int8"),
        ],
        {("qwen3_5_moe", "none"), ("glm4_moe_lite", "int8")}.__contains__,
    ),
)
def test_states_and_latent_attention(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, quant: str
) -> None:
    """Gated delta nets, projections by key head, short convolutions, Mamba-2, and one key for all heads."""
    comes_with_drafter = name in ("qwen3_next", "glm4_moe_lite")
    (make_mtp if comes_with_drafter else make_tiny)(tmp_path, name, vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    drafting = [*([] if comes_with_drafter else ["--drafter", "ngram"]), "--strategy", "auto"]
    assert checked(idle_agents, "--model", str(tmp_path), "--quant", quant, *drafting) == 0
    told = capsys.readouterr().err
    assert "check: the output is identical to the plain model's" in told
    assert ("loading the LM head and the drafter mtp" in told) == comes_with_drafter


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("quant", dealt(["none", "int8"], {"int8"}.__contains__))
def test_layers_that_read_keys_of_other_devices(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str], quant: str
) -> None:
    """A small Gemma 4: its rows carry what later layers are given of each token, and the keys they share."""
    make_tiny(tmp_path, "gemma4-small", vocab_size=300)
    byte_level().save_pretrained(tmp_path)
    drafting = ["--drafter", "ngram", "--strategy", "auto"]
    assert checked(idle_agents, "--model", str(tmp_path), "--quant", quant, *drafting) == 0
    assert "check: the output is identical to the plain model's" in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("kind", dealt(["eagle3", "dflash2", "peagle"], {"eagle3"}.__contains__))
def test_a_head_over_inner_layers_drafts(
    idle_agents: list[AgentProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model, head = tmp_path / "model", tmp_path / "head"
    save_small_lm(model, num_hidden_layers=8)
    if kind == "dflash2":
        save_block_head(head, kind, hidden=32, vocab=4096)
    else:
        save = save_parallel_head if kind == "peagle" else save_eagle3_head
        save(head, hidden=32, vocab=4096, draft_vocab=1000)
    models = ["--model", str(model), "--drafter", str(head), "--strategy", "auto"]
    assert checked(idle_agents, *models) == 0
    told = capsys.readouterr().err
    assert "check: the output is identical to the plain model's" in told
    assert "what the drafter reads of inner layers comes w" in told, "with every row, or when it is accepted"
