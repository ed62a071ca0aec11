"""Token-for-token equality with the plain model for weights that GPTQ, AWQ and compressed-tensors stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.core.sampling import SamplingParams
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.planning.in_process import load_blocks
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import Pair, request, token_ids
from tests.support.gguf_files import BUNDLED
from tests.support.integer_checkpoints import LAYOUTS, write_integer_checkpoint
from tests.support.processes import AgentProcess

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9, seed=13))
NEW_TOKENS = 16
OWN = ("autoregressive", "flowspec", "auto")
# Strategies that need no model between drafter and target.
FLAT = tuple(name for name in STRATEGIES if name not in ("pipespec", "pipespec_sync"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """models(layout) -> the directory of the bundled model in a layout."""

    @cache
    def write(layout: str) -> Path:
        directory = tmp_path_factory.mktemp("models") / layout
        write_integer_checkpoint(BUNDLED, directory, LAYOUTS[layout])
        return directory

    return write


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "strategies"),
    [
        ("gptq-desc_act", ("flowspec",)),
        pytest.param("gptq-desc_act", FLAT, marks=pytest.mark.proof),
        ("awq", ("auto",)),
        ("w8a16", ("flowspec",)),
        pytest.param("w8a16", ("auto",), marks=pytest.mark.proof),
    ],
)
def test_strategies_are_lossless(
    pair: Pair, models: Callable[[str], Path], layout: str, strategies: tuple[str, ...]
) -> None:
    """A difference has to be a tie within the measured effect of the number of rows."""
    checkpoint = Checkpoint(models(layout))
    reference = ReferenceModel.load(checkpoint)
    blocks, prompt = load_blocks(checkpoint, (3, 5), "none"), pair.prompt(40)
    tolerance = reference.measure_tolerance(pair.prompt(128)).value
    same = 0
    for strategy in strategies:
        for sampling in SAMPLINGS if strategy in OWN else SAMPLINGS[1:]:
            pipeline = replace(pair, checkpoint=checkpoint).pipeline([3, 5], blocks=blocks)
            tokens = token_ids(pipeline.generate(request(prompt, sampling, NEW_TOKENS, strategy)))
            judgement = reference.judge(prompt, tokens, sampling, tolerance)
            assert judgement.passed and judgement.checked == NEW_TOKENS, (strategy, sampling, judgement)
            same += not judgement.ties
    assert same >= len(strategies), "half of the outputs have to have no tie at all"


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["gptq", pytest.param("w8a16-int", marks=pytest.mark.proof)])
def test_generate_with_the_check(
    models: Callable[[str], Path],
    idle_agents: list[AgentProcess],
    capsys: pytest.CaptureFixture[str],
    layout: str,
) -> None:
    model = ["--model", str(models(layout)), "--drafter", "bundled"]
    peers = ",".join(agent.address for agent in idle_agents[:3])
    text = ["--prompt", "Once upon a time", "--max-new-tokens", "24", "--temperature", "0.8", "--seed", "3"]
    assert run(["generate", "--peers", peers, "--check", *model, *text]) == 0
    assert "check: the output is" in capsys.readouterr().err
