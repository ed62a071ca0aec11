"""Open HTTP streams outlive the loss of a stage and of the draft node: the same text, and no error."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from openai import OpenAI

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from tests.gateway.asking import COMPLETIONS, await_sessions, body, raw_request
from tests.gateway.http_sockets import connected
from tests.support.free_ports import free_port
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, agents, running
from tests.support.waiting import await_that

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
CHAT = "/v1/chat/completions"
STORY = [{"role": "user", "content": "Tell me a long story about a hen and a goose."}]
DRAWN: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 36}
ASKED = {"model": "bundled", "messages": STORY, "max_tokens": 120, "ignore_eos": True, **DRAWN}
WAIT_S = 120.0


@dataclass
class Shelf:
    """A draft node that keeps its pipeline, its two stages, and a gateway before them."""

    draft_node: AgentProcess
    stages: list[AgentProcess]
    gateway: GatewayProcess

    def restarting(self, device: str) -> Callable[[], None]:
        """Return what kills a device and starts it again."""
        agent = self.draft_node if device == "d0" else self.stages[1]

        def restart() -> None:
            agent.kill()
            agent.start()
            agent.await_address()

        return restart

    def await_ready(self) -> None:
        """Wait until the pipeline is ready with both stages.

        One that a stage was slow to come back to is ready without it first, and is set up again then.
        """
        stages = [each.address for each in self.stages]

        def is_whole() -> bool:
            found = self.draft_node.describe()
            return not found.not_ready and list(found.stage_addresses) == stages

        await_that(is_whole, "the pipeline has not both stages", WAIT_S)


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    with agents(["v1", "v2"]) as stages:
        settings: dict[str, Any] = {
            "pipeline": {"model": "bundled", "look_s": 0.05, "stages": [each.address for each in stages]},
            "deadlines": {"flapping_s": 0.0},
        }
        draft_node = AgentProcess("d0", "--no-advertise", port=free_port(), settings=settings)
        with running(draft_node):
            with Client(draft_node.address) as client:
                client.await_ready(WAIT_S)
            gateway = GatewayProcess(peers=[draft_node.address], settings={"deadlines": {"comment_s": 0.5}})
            with running(gateway):
                yield Shelf(draft_node, list(stages), gateway)


def text_of(events: str) -> str:
    """Return the text of a stream of chat completions, which has no error."""
    data = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(each) for each in data[:-1]]
    assert not [chunk for chunk in chunks if "error" in chunk]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def broken_stream(client: httpx.Client, path: str, asked: dict[str, Any], lose: Callable[[], None]) -> str:
    """Return what a stream sends, on whose way `lose` is called."""
    lost, received = False, ""
    with client.stream("POST", path, json=asked) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_text():
            received += piece
            if not lost and received.count("\n") > 40:
                lost = True
                lose()
    assert lost
    return received


def recoveries(gateway: GatewayProcess, outcome: str = "went_on") -> float:
    name = "flowedge_gateway_recoveries_total{"
    samples = gateway.samples().items()
    return sum(number for key, number in samples if key.startswith(name) and f'outcome="{outcome}"' in key)


@pytest.mark.parametrize("device", [pytest.param("v2", marks=pytest.mark.proof), "d0"])
def test_a_chat_goes_on_when_a_device_is_killed(shelf: Shelf, device: str) -> None:
    before = recoveries(shelf.gateway)
    with shelf.gateway.client() as client:
        whole = client.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"]
        received = broken_stream(client, CHAT, {**ASKED, "stream": True}, shelf.restarting(device))
    assert text_of(received) == whole
    assert f": recovering device {device}\n\n" in received
    assert recoveries(shelf.gateway) > before


@pytest.mark.proof
@pytest.mark.parametrize("device", ["v2", "d0"])
def test_a_request_without_a_stream_takes_longer(shelf: Shelf, device: str) -> None:
    shelf.await_ready()
    asked = {**body(120), **DRAWN}
    with shelf.gateway.client() as client, ThreadPoolExecutor(1) as pool:
        whole = client.post(COMPLETIONS, json=asked).json()["choices"]
        answer = pool.submit(client.post, COMPLETIONS, json=asked)
        await_sessions(shelf.draft_node.address, 1)
        shelf.restarting(device)()
        assert answer.result(WAIT_S).json()["choices"] == whole


@pytest.mark.proof
def test_other_clients_notice_nothing(shelf: Shelf) -> None:
    shelf.await_ready()
    asked: dict[str, Any] = {"model": "bundled", "messages": STORY}
    options = {"num_predict": 120, **DRAWN}
    whole = ollama.Client(shelf.gateway.url).chat(**asked, options=options).message.content
    lose, text = shelf.restarting("v2"), ""
    for part in ollama.Client(shelf.gateway.url).chat(**asked, options=options, stream=True):
        if not text:
            lose()
        text += part.message.content or ""
    assert text == whole
    shelf.await_ready()
    limited: dict[str, Any] = {"max_output_tokens": 120, "temperature": 1.0, "extra_body": {"seed": 36}}
    with OpenAI(base_url=f"{shelf.gateway.url}/v1", api_key="none", max_retries=0) as client:
        one = client.responses.create(model="bundled", input="Tell me of a hen.", **limited)
        lost, deltas = False, ""
        for event in client.responses.create(
            model="bundled", input="Tell me of a hen.", stream=True, **limited
        ):
            if event.type == "response.output_text.delta":
                deltas += event.delta
                if not lost:
                    lost = True
                    shelf.restarting("d0")()
    assert deltas == one.output_text


def test_the_pipeline_is_told_to_recover(shelf: Shelf) -> None:
    shelf.await_ready()
    asked, seen = {**ASKED, "stream": True}, []

    def lose() -> None:
        shelf.restarting("v2")()
        with shelf.gateway.client() as other:
            models = other.get("/health").json()["models"]
            ready = other.get("/health/ready")
            if ready.status_code == 503:  # else it has recovered already
                seen.append((models["bundled"], ready.json()["reason"]))

    with shelf.gateway.client() as client:
        text_of(broken_stream(client, CHAT, asked, lose))
    for model, reason in seen:
        assert model["recovering"] == model["pipelines"] and model["ready"] == []
        assert "being set up" in reason
        assert list(model["problems"]) == model["pipelines"]


def test_a_gateway_that_is_killed_leaves_nothing(shelf: Shelf) -> None:
    shelf.await_ready()
    gateway = GatewayProcess(peers=[shelf.draft_node.address])
    with running(gateway), connected(gateway.host) as connection:
        with gateway.client() as client:
            answer = client.post(COMPLETIONS, json=body(1))
            assert answer.status_code == 200, answer.text
        connection.sendall(raw_request(1900, "Idempotency-Key: a", stream=True))
        await_sessions(shelf.draft_node.address, 1)
        gateway.signal(signal.SIGKILL)
        await_sessions(shelf.draft_node.address, 0)


def test_an_answer_that_cannot_go_on_ends_with_the_error() -> None:
    with agents(["w1"]) as (stage,):
        settings: dict[str, Any] = {
            "pipeline": {"model": "bundled", "look_s": 0.05, "stages": [stage.address]},
            "deadlines": {"recovery_s": 1.0},
        }
        with agents(["e0"], settings=settings) as (draft_node,):
            with Client(draft_node.address) as client:
                client.await_ready(WAIT_S)
            gateway = GatewayProcess(peers=[draft_node.address])
            with running(gateway), gateway.client() as http:
                received = broken_stream(
                    http, CHAT, {**ASKED, "max_tokens": 1500, "stream": True}, stage.kill
                )
                assert recoveries(gateway, "ended") == 1
    *_, error, done = [
        line.removeprefix("data: ") for line in received.splitlines() if line.startswith("data")
    ]
    assert done == "[DONE]"
    told = json.loads(error)["error"]
    assert told["code"] == "device_lost" and "w1" in told["message"]


@pytest.mark.proof
def test_a_pipeline_that_the_gateway_sets_up_again_goes_on(tmp_path: Any) -> None:
    with agents(["x0", "x1"]) as (draft_node, stage):
        file = tmp_path / "pipelines.toml"
        file.write_text(
            f'[[pipelines]]\nname = "bundled"\nagents = ["{draft_node.address}", "{stage.address}"]\n'
        )
        pool = {"pipelines": {"ask_s": 0.2, "most_ask_s": 0.5}}
        with (
            running(gateway := GatewayProcess("--pipelines", str(file), settings=pool)),
            gateway.client() as client,
        ):
            whole = client.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"]

            def lose() -> None:
                stage.kill()
                stage.start()
                stage.await_address()

            received = broken_stream(client, CHAT, {**ASKED, "stream": True}, lose)
    assert text_of(received) == whole


@pytest.mark.proof
def test_a_stream_goes_on_at_the_standby_of_a_draft_node_that_does_not_come_back() -> None:
    with agents(["d0", "d1", "v1"]) as (draft_node, standby, stage):
        spec = PipelineSpec(
            draft_node=draft_node.address,
            stages=(stage.address,),
            drafter=("bundled",),
            standby=standby.address,
        )
        assemble(spec, lambda *_: None)
        await_that(lambda: bool(standby.describe().stands_by_for), "it does not stand by", 30.0)
        gateway = GatewayProcess(peers=[draft_node.address])
        with running(gateway), gateway.client() as client:
            whole = client.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"]
            asked = {**ASKED, "stream": True}
            assert text_of(broken_stream(client, CHAT, asked, draft_node.kill)) == whole
            again = client.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"]
            assert again == whole
            # One that comes back idle is asked no more, and a gateway that asks it hears who leads.
            draft_node.start()
            draft_node.await_address()
            await_that(lambda: bool(draft_node.describe().stands_by_for), "it does not stand by", 30.0)
            other = GatewayProcess(peers=[draft_node.address])
            with running(other), other.client() as second:
                assert second.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"] == whole


@pytest.mark.proof
def test_an_answer_goes_on_at_another_pipeline_of_the_model(tmp_path: Path) -> None:
    """The draft node that is lost does not come back."""
    with agents(["w1", "w2"]) as stages, contextlib.ExitStack() as stack:
        kept = [{"model": "bundled", "look_s": 0.05, "stages": [each.address]} for each in stages]
        first, second = (
            stack.enter_context(agents([name], settings={"pipeline": each}))[0]
            for name, each in zip(("e1", "e2"), kept, strict=True)
        )
        for each in (first, second):
            with Client(each.address) as client:
                client.await_ready(WAIT_S)
        file = tmp_path / "gateway.toml"
        tables = (f'[[pipelines]]\ndraft_node = "{each.address}"\n' for each in (first, second))
        file.write_text("\n".join(tables))
        gateway = GatewayProcess("--pipelines", str(file))
        with running(gateway), gateway.client() as http:
            whole = http.post(CHAT, json=ASKED).json()["choices"][0]["message"]["content"]

            def lose() -> None:
                (busy,) = [each for each in (first, second) if each.describe().sessions]
                busy.kill()

            received = broken_stream(http, CHAT, {**ASKED, "stream": True}, lose)
            assert recoveries(gateway) == 1
    assert text_of(received) == whole
