"""A draft node that is a stage of its pipeline as well: alone, as the first and as the last one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowedge.cli.options import pipeline_peers
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import BadRequestError
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents, running
from tests.support.waiting import await_that
from tests.support.whole_answers import whole_answer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
STORY = "Tell me a long story about a hen and a goose."
DRAWN = {"max_new_tokens": 100, "ignore_eos": True, "temperature": 1.0, "seed": 36}


@pytest.fixture(scope="module")
def pair() -> Iterator[list[AgentProcess]]:
    settings = {"deadlines": {"recovery_s": 60.0, "flapping_s": 0.0}}
    made = [AgentProcess(name, "--no-advertise", port=free_port(), settings=settings) for name in ("a", "b")]
    with running(*made):
        yield made


@pytest.mark.proof
@pytest.mark.parametrize(
    ("order", "names", "layers"),
    [
        pytest.param("a", ["a+"], (0, 8), marks=pytest.mark.proof),
        pytest.param("ab", ["a+", "b"], (0, 4), marks=pytest.mark.proof),
        ("ba", ["b", "a+"], (4, 8)),
    ],
)
def test_any_place_gives_the_same_tokens(
    pair: list[AgentProcess], order: str, names: list[str], layers: tuple[int, int]
) -> None:
    by_name = {agent.name: agent for agent in pair}
    first = by_name["a"]
    spec = PipelineSpec(
        draft_node=first.address, stages=tuple(by_name[name].address for name in order), drafter="bundled"
    )
    pipeline = assemble(spec, lambda *_: None)
    try:
        with Client(first.address) as client:
            device = client.describe()
            assert (device.role, device.layers) == ("draft node", layers)
            for strategy in ("auto", "flowspec", "autoregressive"):
                answer = client.generate(STORY, strategy=strategy, **DRAWN)
                assert answer.result().token_ids == whole_answer(client, STORY, **DRAWN).token_ids
                told = answer.statistics
                assert [stage["report"]["device"] for stage in told["stages"]] == names
                assert set(told["link_bytes"]) == {"a", "express", *names}
            samples = first.samples()
            assert samples["flowedge_kv_cache_budget_bytes"] > 0
            assert samples["flowedge_queue_requests"] == samples["flowedge_queue_segments"] == 0
    finally:
        release([first.address], pipeline)
    for agent in pair:
        await_that(lambda agent=agent: not agent.describe().role)  # type: ignore[misc]


@pytest.mark.parametrize("killed", ["a", pytest.param("b", marks=pytest.mark.proof)])
def test_an_answer_outlives_either_device(killed: str) -> None:
    """The draft node has its pipeline in its settings, with itself as the first stage."""
    port = free_port()
    with agents(["b"]) as (other,):
        own = f"127.0.0.1:{port}"
        settings = {
            "pipeline": {"model": "bundled", "look_s": 0.05, "stages": [own, other.address]},
            "deadlines": {"recovery_s": 60.0, "flapping_s": 0.0},
        }
        draft_node = AgentProcess("a", "--no-advertise", port=port, settings=settings)
        with running(draft_node), Client(own) as client:
            client.await_ready(120)
            whole = whole_answer(client, STORY, **DRAWN)
            agent, lost = {"a": draft_node, "b": other}[killed], False
            answer = client.generate(STORY, **DRAWN)
            for _ in answer:
                if not lost and len(answer.token_ids) > 20:
                    lost = True
                    agent.kill()
                    agent.start()
                    agent.await_address()
            assert lost
            assert answer.token_ids == whole.token_ids
            await_that(lambda: client.describe().stage_addresses == (own, other.address))
            assert client.describe().layers == (0, 4)
            if killed == "b":
                assert draft_node.line("layers 0 to 3 are loaded still")


def test_how_it_is_written() -> None:
    assert pipeline_peers("h:1+, h:2") == ("h:1", "h:1", "h:2")
    assert pipeline_peers("h:1,h:2,h:1") == ("h:1", "h:2", "h:1")
    assert pipeline_peers("h:1+") == ("h:1", "h:1")
    assert pipeline_peers("h:1,h:2") == ("h:1", "h:2")
    with pytest.raises(BadRequestError, match="h:2 is named twice; an agent is one stage at most"):
        PipelineSpec(draft_node="h:1", stages=("h:1", "h:2", "h:2"))
