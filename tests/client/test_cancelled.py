"""A request that its client ends early is cancelled on the draft node, and its answer says so."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from flowedge.client import AsyncClient, AsyncGeneration, Client, Generation
from flowedge.client.transcript import AnswerStatistics
from flowedge.core.errors import DeadlineError
from flowedge.core.request import drafting_gain
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import ENDED_S, EndlessAnswer, chunk, finished, serving, started


def _is_cancelled(answer: Generation | AsyncGeneration) -> None:
    assert answer.finish_reason == "cancelled"
    assert (answer.text, answer.token_ids, answer.seed) == ("Hello", [5, 6], 7)
    known = answer.statistics
    assert (known["finish_reason"], known["new_tokens"], known["prompt_tokens"]) == ("cancelled", 2, 2)
    assert 0 < known["ttft_s"] <= known["total_s"]
    assert str(known).startswith("2 tokens (cancelled), ")


def test_leaving_the_loop_cancels_the_request() -> None:
    endless = EndlessAnswer()
    with serving(endless) as (_, address), Client(address) as client:
        answer = client.generate("Hi")
        for _ in answer:
            if len(answer.token_ids) == 2:
                break
        assert endless.ended.wait(ENDED_S)
        _is_cancelled(answer)
        assert list(answer) == []
        assert answer.result() is answer


def test_leaving_the_loop_cancels_the_request_of_the_async_client_too() -> None:
    async def ask(address: str) -> AsyncGeneration:
        async with AsyncClient(address) as client:
            answer = client.generate("Hi")
            async for _ in answer:
                if len(answer.token_ids) == 2:
                    break
            assert await asyncio.to_thread(endless.ended.wait, ENDED_S)
            assert [chunk async for chunk in answer] == []
            return await answer.result()

    endless = EndlessAnswer()
    with serving(endless) as (_, address):
        _is_cancelled(asyncio.run(ask(address)))


def test_another_thread_may_close_an_answer_that_is_waited_for() -> None:
    endless = EndlessAnswer()
    with serving(endless) as (_, address), Client(address) as client:
        answer = client.generate("Hi")
        waiting = threading.Thread(target=answer.result)
        waiting.start()
        while len(answer.token_ids) < 2:
            time.sleep(0.01)
        answer.close()
        waiting.join(ENDED_S)
        assert not waiting.is_alive()
        _is_cancelled(answer)


def test_another_task_may_close_an_answer_that_is_waited_for() -> None:
    async def ask(address: str) -> AsyncGeneration:
        async with AsyncClient(address) as client:
            answer = client.generate("Hi")
            await anext(answer)
            await anext(answer)
            waiting = asyncio.create_task(answer.result())
            await asyncio.sleep(0.05)
            answer.close()
            return await asyncio.wait_for(waiting, ENDED_S)

    with serving(EndlessAnswer()) as (_, address):
        _is_cancelled(asyncio.run(ask(address)))


def test_closing_the_client_cancels_its_requests() -> None:
    async def ask(address: str) -> AsyncGeneration:
        async with AsyncClient(address) as client:
            answer = client.generate("Hi")
            await anext(answer)
            await anext(answer)
        return answer

    endless = EndlessAnswer()
    with serving(endless) as (_, address):
        with Client(address) as client:
            answer = client.generate("Hi")
            assert [next(answer).text, next(answer).text] == ["Hel", "lo"]
        assert endless.ended.wait(ENDED_S)
        _is_cancelled(answer)
        _is_cancelled(asyncio.run(ask(address)))


def test_an_answer_that_was_closed_before_it_began() -> None:
    async def ask(address: str) -> AsyncGeneration:
        async with AsyncClient(address) as client, client.generate("Hi") as answer:
            pass
        return await answer.result()

    with serving(EndlessAnswer()) as (_, address), Client(address) as client:
        with client.generate("Hi") as answer:
            pass
        for closed in (answer, asyncio.run(ask(address))):
            assert (closed.finish_reason, closed.token_ids) == ("cancelled", [])
            assert closed.statistics["new_tokens"] == 0


def test_a_complete_answer_is_not_cancelled_by_closing_it() -> None:
    def script(request: Any, context: Any) -> list[pb.GenerateEvent]:
        return [started(), chunk("x", 1), finished("length", '{"new_tokens": 1}')]

    with serving(script) as (_, address), Client(address) as client:
        answer = client.generate("Hi").result()
        answer.close()
        assert (answer.finish_reason, answer.statistics) == ("length", {"new_tokens": 1})


def test_a_timeout_says_its_limit() -> None:
    async def ask(address: str) -> None:
        async with AsyncClient(address, timeout_s=0.6) as client:
            await client.generate("Hi").result()

    with serving(EndlessAnswer()) as (_, address), Client(address, timeout_s=60) as client:
        answer = client.generate("Hi", timeout_s=0.5)
        with pytest.raises(DeadlineError, match=r"not complete after 0\.5 s, the limit given by timeout_s"):
            answer.result()
        assert (answer.finish_reason, answer.token_ids) == (None, [5, 6])
        with pytest.raises(DeadlineError, match="timeout_s"):
            next(answer)
        with pytest.raises(DeadlineError, match=r"not complete after 0\.6 s, the limit given by timeout_s"):
            asyncio.run(ask(address))


GAIN = "1.8 times plain decoding (11.8 tokens/s), 1.40 accepted drafts a segment"


@pytest.mark.parametrize(
    ("speed", "plain", "rounds", "segments", "text"),
    [
        (21.3, 11.8, (3, 3, 4), (2, 2, 2, 2, 2), GAIN),
        (12.0, 11.8, (3, 3, 4), (2, 2, 2, 2, 2), "no faster than plain decoding (11.8 tokens/s)"),
        (21.3, 0.0, (3, 3, 4), (10,), "7.00 accepted drafts a segment"),
        (21.3, 0.0, (1, 1, 0), (1, 1), ""),  # a head that is never right
        (0.0, 0.0, (), (), ""),
    ],
)
def test_the_gain_of_drafts_is_told_where_there_is_one(
    speed: float, plain: float, rounds: tuple[int, ...], segments: tuple[int, ...], text: str
) -> None:
    assert drafting_gain(speed, plain, rounds, segments) == text


def test_statistics_are_one_line_of_text_and_a_dict() -> None:
    statistics = AnswerStatistics(
        new_tokens=74,
        tokens_per_s=21.34,
        ttft_s=0.409,
        counters={
            "draft_layers": 9,
            "accepted_per_round": [3, 3, 4],
            "accepted_per_segment": [2, 2, 2, 2, 2],
            "plain_tokens_per_s": 11.8,
        },
        finish_reason="eos",
    )
    assert str(statistics) == "74 tokens, 21.3 tokens/s, first token after 0.41 s, " + GAIN
    assert f"{statistics}" == str(statistics)
    assert statistics["new_tokens"] == 74
    assert str(AnswerStatistics(new_tokens=1, counters={"draft_layers": 0})) == "1 token"
    assert str(AnswerStatistics(counters=3, ttft_s="x")) == "no statistics"
