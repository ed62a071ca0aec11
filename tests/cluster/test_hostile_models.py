"""Models with hostile chat templates and configs, at real agents that go on serving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import flowedge
from flowedge.client import Client
from flowedge.client.assembly import release
from flowedge.core.errors import FlowEdgeError
from tests.support.processes import AgentProcess, agents
from tests.support.stage_config import assembled

BUNDLED = Path(flowedge.__file__).parent / "bundled" / "model"
LOOPS = (
    "{% for a in range(10 ** 5) %}{% for b in range(10 ** 5) %}{% endfor %}{% endfor %}",
    "more than 3 s of CPU time",
)
EXPLODES = ("{{ 'a' * 10 ** 9 }}", "more than 256 MiB of memory")
GROWTH_MIB = 100
in_proof = pytest.mark.proof  # of what takes seconds, though test_renderer.py ends the same template


@pytest.fixture(scope="module")
def pair() -> Iterator[list[AgentProcess]]:
    with agents(["d0", "v1"]) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model"))


def load(pair: list[AgentProcess], model: Path) -> None:
    assembled(pair, drafter=None, model=str(model))


def children(agent: AgentProcess) -> list[psutil.Process]:
    return psutil.Process(agent.pid).children()


def mib(agent: AgentProcess) -> float:
    return agent.resident_bytes() / 2**20


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        pytest.param(*LOOPS, id="loops", marks=in_proof),
        pytest.param(*EXPLODES, id="explodes"),
        pytest.param("{% for %}", "Expected an expression", id="syntax"),
    ],
)
def test_a_hostile_template_is_refused_when_its_model_is_loaded(
    pair: list[AgentProcess], model: Path, template: str, reason: str
) -> None:
    (model / "chat_template.jinja").write_text(template)
    before = mib(pair[0])
    with pytest.raises(FlowEdgeError, match=f"chat template of .*cannot be used: .*{reason}"):
        load(pair, model)
    assert mib(pair[0]) < before + GROWTH_MIB
    assert pair[0].describe().name == "d0"


@pytest.mark.parametrize(
    ("template", "reason"),
    [pytest.param(*LOOPS, id="loops", marks=in_proof), pytest.param(*EXPLODES, id="explodes")],
)
def test_a_template_without_bounds_for_some_messages_ends_their_requests_only(
    pair: list[AgentProcess], model: Path, template: str, reason: str
) -> None:
    good = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(
        "{% if 'badly' in messages[0].content %}" + template + "{% endif %}" + good
    )
    load(pair, model)
    try:
        before = mib(pair[0])
        with Client(pair[0].address, timeout_s=60) as client:
            for _ in range(2):
                with pytest.raises(FlowEdgeError, match=reason):
                    client.generate("badly", max_new_tokens=2, strategy="autoregressive").result()
                answer = client.generate("Hi", max_new_tokens=2, strategy="autoregressive").result()
                assert len(answer.token_ids) == 2
        assert mib(pair[0]) < before + GROWTH_MIB
        assert len(children(pair[0])) <= 1  # no renderer is left behind
    finally:
        release([agent.address for agent in pair], "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 300_000_000),
        ("num_attention_heads", 0),
        ("hidden_size", "64"),
        ("vocab_size", 10**30),
    ],
)
def test_a_hostile_config_is_refused_by_name(
    pair: list[AgentProcess], model: Path, field: str, value: object
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    before = mib(pair[0])
    with pytest.raises(FlowEdgeError, match=rf"config\.json: {field} is"):
        load(pair, model)
    assert mib(pair[0]) < before + GROWTH_MIB
    assert pair[0].describe().name == "d0"
