"""A model whose chat template knows users and assistants alone: system messages and tools become text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowedge.client import ChatMessage, Client, ToolCall
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import BUNDLED_PATH
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.template_tools import described_tools
from flowedge.text.tokenizer import encode_messages
from tests.gateway.answers.test_conversations import BRIEF, CHAT, DEFINE, OLLAMA, SYSTEM, asked
from tests.gateway.application import GatewayHere, gateway_here
from tests.support.processes import agents

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
{{ '<|assistant|>' + message['content'] + eos_token }}{% else %}{{ '<|user|>' + message['content'] }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two-roles") / "model"
    shutil.copytree(BUNDLED_PATH / "model", directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def draft_node(model: Path, processes_end: None) -> Iterator[str]:
    with agents(["roles-d0", "roles-v1"]) as (draft_node, stage):
        spec = PipelineSpec(
            draft_node=draft_node.address, stages=(stage.address,), model=str(model), drafter=("ngram",)
        )
        assemble(spec, lambda *_: None)
        yield draft_node.address


@pytest.fixture(scope="module")
def served(draft_node: str) -> Iterator[GatewayHere]:
    with gateway_here(draft_node) as gateway:
        yield gateway


def test_a_system_message_goes_to_the_users(served: GatewayHere) -> None:
    folded = {"role": "user", "content": f"{BRIEF['content']}\n\n{DEFINE['content']}"}
    expected, unsaid = asked(served, CHAT, [folded])
    assert unsaid is None
    for path in (CHAT, OLLAMA):
        assert asked(served, path, [BRIEF, DEFINE]) == (expected, "in-user-message")
    alone, said = asked(served, CHAT, [BRIEF])
    assert (alone, said) == (asked(served, CHAT, [{**BRIEF, "role": "user"}])[0], "in-user-message")
    with served.client() as client:
        listed = client.get("/v1/models").json()["data"][0]["id"]
        stream = client.post(
            CHAT, json={"model": listed, "messages": [BRIEF], "stream": True, "max_tokens": 2}
        )
    assert stream.headers[SYSTEM] == "in-user-message"


def test_tools_are_described(draft_node: str, model: Path) -> None:
    tokenizer = load_tokenizer(Checkpoint.open(str(model)))
    talk = [
        ChatMessage("user", "Rain?"),
        ChatMessage("assistant", tool_calls=[ToolCall("c1", "weather", '{"city": "Bonn"}')]),
        ChatMessage("tool", "dry", tool_call_id="c1"),
    ]
    call = {"function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "dry"},
    ]
    with Client(draft_node) as client:
        answer = client.chat(talk, tools=[WEATHER], echo=True, max_new_tokens=4).result()
        hidden = client.chat(talk, tools=[WEATHER], tool_choice="none", max_new_tokens=4).result()
    assert list(answer.prompt_ids) == encode_messages(tokenizer, described_tools(messages, [WEATHER]))
    assert list(hidden.prompt_ids) == encode_messages(tokenizer, described_tools(messages, []))
    assert "<tool_response>\ndry\n</tool_response>" in answer.prompt_text
