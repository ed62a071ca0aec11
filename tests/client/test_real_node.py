"""The clients against a pipeline of real agents: early ends reach the devices, statistics are a line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from flowedge.client import AsyncClient, AsyncGeneration, Client
from tests.support.processes import AgentProcess, agents, become_pipeline

PROMPT = "Tell me a long story about the sea."


@pytest.fixture(scope="module")
def draft_node() -> Iterator[AgentProcess]:
    with agents(["d0", "v1"]) as started:
        become_pipeline(started)
        yield started[0]


def _ends_of_requests(draft_node: AgentProcess, request_id: str) -> str:
    return draft_node.line("a session has ended", f"request={request_id}")


def test_a_loop_that_is_left_ends_the_session_on_the_devices(draft_node: AgentProcess) -> None:
    async def ask() -> AsyncGeneration:
        async with AsyncClient(draft_node.address) as client:
            answer = client.generate(PROMPT, max_new_tokens=1500, ignore_eos=True, request_id="left-async")
            async for _ in answer:
                break
            await asyncio.to_thread(_ends_of_requests, draft_node, "left-async")
        return answer

    with Client(draft_node.address) as client:
        answer = client.generate(PROMPT, max_new_tokens=1500, ignore_eos=True, request_id="left")
        for _ in answer:
            break
        assert "the client went away" in _ends_of_requests(draft_node, "left")
    for left in (answer, asyncio.run(ask())):
        assert left.finish_reason == "cancelled"
        assert 0 < len(left.token_ids) == left.statistics["new_tokens"] < 1500
        assert "(cancelled), " in str(left.statistics)


def test_statistics_of_a_real_answer_are_one_line(draft_node: AgentProcess) -> None:
    with Client(draft_node.address) as client:
        answer = client.generate(PROMPT, max_new_tokens=24, ignore_eos=True, strategy="flowspec").result()
        client.generate(PROMPT, max_new_tokens=24, ignore_eos=True).result()
        second = client.generate(PROMPT, max_new_tokens=48, ignore_eos=True).result()
    assert re.fullmatch(
        r"24 tokens, [\d.]+ tokens/s, first token after [\d.]+ s, [\d.]+ accepted drafts a segment",
        str(answer.statistics),
    )
    assert answer.statistics["counters"]["plain_tokens_per_s"] == 0
    assert second.statistics["counters"]["plain_tokens_per_s"] > 0, "auto measures it with the second request"
    assert answer.statistics["counters"]["accepted_per_round"]
