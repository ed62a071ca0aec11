"""The model's own sampling is the default of every client, and the chat shows and changes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import BUNDLED_PATH
from flowedge.models.checkpoint.tokenizer_loading import generation_sampling
from tests.cli.chat.test_chat import QUESTION, piped
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, running

OWN = {"do_sample": True, "temperature": 0.9, "top_k": 5}


def model_with(directory: Path, **generation: object) -> Path:
    """Copy the bundled model, whose generation config says `generation` then."""
    shutil.copytree(BUNDLED_PATH / "model", directory)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@pytest.fixture
def sampler(idle_agents: list[AgentProcess], tmp_path: Path) -> Iterator[str]:
    """The draft node of a base model that has tokens drawn at a temperature."""
    model = model_with(tmp_path / "model", **OWN)
    (model / "chat_template.jinja").unlink()
    draft_node, stage = (agent.address for agent in idle_agents[:2])
    spec = PipelineSpec(draft_node=draft_node, stages=(stage,), model=str(model), drafter="ngram")
    assemble(spec, lambda *_: None)
    yield draft_node


def test_the_models_generation_sampling_is_the_default_of_every_client(sampler: str) -> None:
    with Client(sampler) as client:
        drawn, asked, greedy = (
            client.generate(QUESTION, seed=3, max_new_tokens=16, **options).result()
            for options in ({}, {"temperature": 0.9, "top_k": 5}, {"temperature": 0.0})
        )
    assert drawn.token_ids == asked.token_ids != greedy.token_ids
    with running(gateway := GatewayProcess(peers=[sampler])), gateway.client() as http:
        body = {"model": "model", "prompt": QUESTION, "seed": 3, "max_tokens": 16}
        served = http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
        body = {"model": "model", "prompt": QUESTION, "raw": True, "stream": False}
        body |= {"options": {"seed": 3, "num_predict": 16}}
        ollama = http.post("/api/generate", json=body).raise_for_status().json()["response"]
    assert served == ollama == drawn.text


def test_the_chat_says_how_it_draws_and_changes_it(sampler: str) -> None:
    commands = (
        "/set\n/set temperature 0\n/set top_p 2\n/set beams 4\n/set temperature default\n/bye\nnever asked\n"
    )
    ran = piped(commands, "--peers", sampler)
    assert "draws with temperature 0.9, top_k 5 (the model's own); /set changes it" in ran.stderr
    assert "this model has no chat template" in ran.stderr
    lines = [
        line for line in ran.stderr.splitlines() if "(the model's own: temperature 0.9, top_k 5)" in line
    ]
    assert [line.partition(",")[0] for line in lines] == [
        "temperature 0.9",
        "temperature 0",
        "temperature 0.9",
    ]
    assert "top_p is 2.0; it must be" in ran.stderr and "not beams" in ran.stderr
    assert not ran.stdout


@pytest.mark.parametrize(
    ("generation", "own"),
    [
        ({}, {}),
        ({"temperature": 0.6}, {}),
        (OWN, {"temperature": 0.9, "top_k": 5}),
        ({"do_sample": True, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95}),
    ],
)
def test_a_generation_config_says_how_tokens_are_drawn(
    generation: dict[str, object], own: dict[str, float], tmp_path: Path
) -> None:
    model = model_with(tmp_path / "model", **generation)
    assert generation_sampling(Checkpoint.open(str(model))) == own


def test_a_generation_config_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    model = model_with(tmp_path / "model", do_sample=True, temperature="hot")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature is 'hot'"):
        generation_sampling(Checkpoint.open(str(model)))
