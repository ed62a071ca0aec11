"""Prefixes over real sockets: what is kept, what is lost, and the answers, which stay the same."""

from __future__ import annotations

from dataclasses import replace

from tests.live.test_live import TEST_S, TOKENS, Models, live_pipeline, models, request, result_of, until
from tests.support.loops import in_loop
from tests.support.seams import forget_kept, lose_kept

__all__ = ["models"]  # the fixture

KEPT_ROWS = 10_000


@in_loop(TEST_S)
async def test_turns_of_a_chat_and_a_stage_that_loses_what_it_kept(models: Models) -> None:
    async with live_pipeline(models) as (node, _):
        first, _ = await result_of(node, request("first"))
        prompt = (*request("x").prompt, *first, 7, 8, 9)
        expected, plain = await result_of(node, replace(request("plain", "autoregressive"), prompt=prompt))
        assert plain.counters.reused_rows == 0
        assert node.load().retained == 0
    async with live_pipeline(models, kept_rows=KEPT_ROWS) as (node, stages):
        assert (await result_of(node, request("a")))[0] == first
        await until(lambda: all(stage.load().retained == 1 for stage in stages))
        turn, finished = await result_of(node, replace(request("b", "auto"), prompt=prompt))
        assert turn == expected
        assert finished.counters.reused_rows >= len(request("x").prompt) + TOKENS // 2
        assert finished.reports[1].rows_computed > 0
        lose_kept(stages[1], "b")
        again, finished = await result_of(node, replace(request("c"), prompt=prompt))
        assert again == expected, "it was computed from the start"
        assert finished.counters.reused_rows == 0
        await until(lambda: not any(stage.load().sessions for stage in stages))
        assert forget_kept(node, KEPT_ROWS) > 0
        await until(lambda: not any(stage.load().retained for stage in stages))
        assert node.load().retained == 0
        assert [stage.load().drained for stage in stages] == [True] * len(stages)
