"""Answers through HTTP: equal to the plain model's, alone and together; ended when the client goes away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import APIError, OpenAI

from flowedge.core.sampling import SamplingParams
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.tokenizer import encode_chat
from tests.gateway.application import GatewayHere
from tests.gateway.asking import await_sessions, device_at
from tests.support.gateways import GatewayProcess, gateway_before
from tests.support.processes import AgentProcess, agents, become_pipeline

QUESTIONS = [f"Write a function that adds {number} numbers." for number in range(2, 10)]
LONG: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "stream": True}


def _asked(question: str, **given: Any) -> dict[str, Any]:
    return {"model": "bundled", "messages": [{"role": "user", "content": question}], **given}


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[GatewayProcess, list[AgentProcess]]]:
    """A gateway before a pipeline of its own, which a test may break."""
    with agents(["d0", "v1"], settings={"deadlines": {"recovery_s": 1.0}}) as started:
        become_pipeline(started)
        with gateway_before(started[0].address) as gateway:
            yield gateway, started


def test_the_likeliest_answer_is_that_of_transformers(official: OpenAI) -> None:
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    prompt = encode_chat(tokenizer, QUESTIONS[0])
    expected = ReferenceModel.load("bundled").generate(prompt, SamplingParams(), 16)
    answer = official.chat.completions.create(
        **_asked(QUESTIONS[0], max_tokens=16, temperature=0), extra_body={"ignore_eos": True}
    )
    text = tokenizer.decode(expected.token_ids, skip_special_tokens=True)
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize(
    ("number", "stream"), [(17, True), pytest.param(64, False, marks=pytest.mark.proof)], ids=str
)
def test_more_answers_than_a_draft_node_takes_at_once(served: GatewayHere, number: int, stream: bool) -> None:
    asked = {
        "model": "bundled",
        "prompt": "def add(",
        "max_tokens": 2,
        "temperature": 1.0,
        "ignore_eos": True,
    }
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    with served.client() as client:
        many = client.post(
            "/v1/completions", json={**asked, "n": number, "seed": 5, "stream": stream, **usage}
        )
        assert many.status_code == 200, many.text
        last = client.post("/v1/completions", json={**asked, "seed": 5 + number - 1}).json()
    if stream:
        events = [json.loads(line[6:]) for line in many.text.splitlines() if line.startswith("data: {")]
        texts, tokens = [""] * number, events[-1]["usage"]["completion_tokens"]
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice["text"]
    else:
        texts = [choice["text"] for choice in many.json()["choices"]]
        tokens = many.json()["usage"]["completion_tokens"]
    assert (len(texts), tokens) == (number, 2 * number)
    assert texts[-1] == last["choices"][0]["text"]


def test_clients_at_once_get_the_answers_they_get_alone(gateway4: GatewayProcess, cluster4: str) -> None:
    def ask(seed: int, stream: bool) -> str:
        with OpenAI(base_url=f"{gateway4.url}/v1", api_key="none", max_retries=0) as client:
            asked = _asked(QUESTIONS[seed], max_tokens=8, seed=seed, temperature=0.8, stream=stream)
            answer = client.chat.completions.create(**asked)
            if stream:
                return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            return str(answer.choices[0].message.content)

    alone = [ask(seed, stream=False) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda seed: ask(seed, stream=seed % 2 == 0), range(8)))
    assert together == alone
    await_sessions(cluster4, 0)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/v1/chat/completions", _asked("Go on.", n=2, **LONG)),
        (
            "/v1/responses",
            {
                "model": "bundled",
                "input": "Go on.",
                "max_output_tokens": 1500,
                "ignore_eos": True,
                "stream": True,
            },
        ),
    ],
)
def test_a_client_that_goes_away_frees_the_caches(
    small: tuple[GatewayProcess, list[AgentProcess]], path: str, given: dict[str, Any]
) -> None:
    gateway, (draft_node, *_) = small
    with gateway.client() as http, http.stream("POST", path, json=given) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()  # kept: httpx closes the answer with it
        next(lines)
        assert device_at(draft_node.address).sessions > 0
    await_sessions(draft_node.address, 0)
    line = gateway.next_line(f"endpoint={path}")
    assert "reason=client_gone" in line


def test_answers_are_counted(official: OpenAI, served: GatewayHere, cluster4: str) -> None:
    labels = f'direction="out",model="bundled",pipeline="{cluster4}"'
    name = f"flowedge_gateway_tokens_total{{{labels}}}"
    before = served.samples().get(name, 0.0)
    official.chat.completions.create(**_asked(QUESTIONS[0], max_tokens=5, n=2, temperature=0))
    assert served.samples()[name] == before + 10


def test_a_device_that_is_lost_ends_a_stream_with_an_error(
    small: tuple[GatewayProcess, list[AgentProcess]],
) -> None:
    gateway, (_, stage) = small
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        response = iter(
            client.responses.create(
                model="bundled",
                input="Go on.",
                max_output_tokens=1500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
        )
        stream = iter(client.chat.completions.create(**_asked("Go on.", max_tokens=1500, stream=True)))
        next(stream)
        next(response)
        stage.kill()
        with pytest.raises(APIError, match="v1"):
            list(stream)
        last = list(response)[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "v1" in last.response.error.message
