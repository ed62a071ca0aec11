"""Conversations that keep their history, with a scripted draft node and with a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowedge.client import AsyncClient, ChatMessage, Client, DraftNodeStatus, ToolCall
from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import chunk, finished, options_of, serving, started

TOOL = {"type": "function", "function": {"name": "rain"}}


def counting(request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateEvent]:
    """Answer with the number of messages; then "call" gets a tool call, and "fail" an error."""
    said = request.conversation.messages
    yield started()
    yield chunk(str(len(said)), 5)
    if said[-1].content == "fail":
        context.abort(13, "broken")
    if said[-1].content == "call":
        call = pb.ToolCallDelta(index=0, id="c1", name="rain", arguments='{"city": "Bonn"}')
        yield pb.GenerateEvent(chunk=pb.Chunk(tool_calls=[call]))
    yield finished()


def test_each_answer_is_added_to_the_history(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with serving(counting) as (node, address), Client(address) as client:
        talk = client.conversation(system="Be brief.", tools=[TOOL], max_new_tokens=9)
        assert [part.text for part in talk.ask("Hi")] == ["2"]
        answer = talk.ask("call", temperature=0.5).result()
        assert answer.tool_calls == [ToolCall("c1", "rain", '{"city": "Bonn"}')]
        talk.answer_tool(answer.tool_calls[0], {"rain": False})
        assert talk.ask().result().text == "6"
        talk.save(file)
        other = client.conversation()
        other.load(file)
        assert (other.messages, other.tools) == (talk.messages, talk.tools)
        talk.reset()
        assert talk.ask("Hi").result().text == "2"
    assert [message.role for message in other.messages] == [
        *("system", "user", "assistant", "user", "assistant", "tool", "assistant")
    ]
    assert other.messages[5] == ChatMessage("tool", '{"rain": false}', tool_call_id="c1", name="rain")
    assert other.system == "Be brief."
    assert [options_of(request).max_new_tokens for request in node.requests] == [9] * 4
    assert json.loads(node.requests[1].conversation.tools[0]) == TOOL
    assert json.loads(file.read_text())["messages"][0] == {"role": "system", "content": "Be brief."}


def test_an_answer_that_does_not_end_leaves_the_history_as_it_was() -> None:
    with serving(counting) as (_, address), Client(address) as client:
        talk = client.conversation()
        with pytest.raises(DeviceError, match="broken"):
            talk.ask("fail").result()
        assert talk.messages == []
        answer = talk.ask("Hi")
        next(answer)
        with pytest.raises(BadRequestError, match="still running"):
            talk.ask("Hi")
        answer.close()
        assert talk.messages == []
        talk.keeps_partial = True
        answer = talk.ask("Hi")
        next(answer)
        answer.close()
        assert talk.messages == [ChatMessage("user", "Hi"), ChatMessage("assistant", "1")]
        del answer
        assert talk.ask("Ho").result().text == "3"


def test_a_conversation_for_asyncio() -> None:
    async def talk_with(address: str) -> list[str]:
        async with AsyncClient(address) as client:
            talk = client.conversation()
            texts = [part.text async for part in talk.ask("Hi")]
            return [*texts, (await talk.ask("Ho").result()).text]

    with serving(counting) as (_, address):
        assert asyncio.run(talk_with(address)) == ["1", "3"]


@pytest.mark.parametrize("content", ["{", "[]", '{"messages": [{"role": "robot"}]}'])
def test_a_file_without_a_conversation_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    with Client("127.0.0.1:1") as client, pytest.raises(BadRequestError):
        client.conversation().load(file)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with Client("127.0.0.1:1") as client:
        talk = client.conversation()
        with pytest.raises(BadRequestError, match="messages is empty"):
            talk.ask()
        with pytest.raises(BadRequestError, match="the system message is empty"):
            client.conversation(system=" ")
        with pytest.raises(BadRequestError, match=r"tools\[0\]"):
            client.conversation(tools=[{"name": "rain"}])
        with pytest.raises(BadRequestError, match="cannot be written"):
            talk.save("/missing/talk.json")
        function = {"name": "rain", "parameters": {"enum": {1, 2}}}
        unsaved = client.conversation(tools=[{"type": "function", "function": function}])
        with pytest.raises(BadRequestError, match="not JSON serializable"):
            unsaved.save(tmp_path / "talk.json")
    assert not (tmp_path / "talk.json").exists()


def test_the_second_question_reuses_the_rows_of_the_first(cluster4: str) -> None:
    with Client(cluster4) as client:
        talk = client.conversation(max_new_tokens=30)
        first = talk.ask("Tell me about bees.").result()
        second = talk.ask("Now one that multiplies them.").result()
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert second.statistics["counters"]["reused_rows"] >= len(first.prompt_ids)


def test_the_devices_of_a_pipeline(cluster4: str) -> None:
    async def ask() -> list[str]:
        async with AsyncClient(cluster4) as client:
            return [device.name for device in await client.devices()]

    with Client(cluster4) as client:
        devices = client.devices()
    assert [device.role for device in devices] == ["draft node", *["stage"] * 4]
    assert [device.layers[0] for device in devices[1:]] == sorted(device.layers[0] for device in devices[1:])
    assert asyncio.run(ask()) == [device.name for device in devices]


def test_the_status_of_a_draft_node(cluster4: str) -> None:
    async def ask() -> DraftNodeStatus:
        async with AsyncClient(cluster4) as client:
            return await client.status()

    with Client(cluster4) as client:
        status = client.status()
        stage = client.describe().stage_addresses[0]
    assert (status.model, status.stages, status.waiting) == ("bundled", 4, 0)
    assert status.context_tokens > 0
    assert asyncio.run(ask()).name == status.name
    with Client(stage) as client, pytest.raises(DeviceError, match="is not a draft node"):
        client.status()
