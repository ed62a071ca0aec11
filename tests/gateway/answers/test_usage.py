"""Usage of a request with several answers."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.gateway.answers.usage import AnswerUsage, RequestUsage


def _answer(place: int, reused: int, segments: tuple[int, ...], **statistics: Any) -> AnswerUsage:
    counters = {
        "reused_rows": reused,
        "accepted_per_segment": segments,
        "accepted_per_round": (sum(segments),),
        "draft_rows_sent": 10,
    }
    return AnswerUsage(place, 8, sum(segments), 2, {"counters": counters, **statistics})


def test_answers_of_one_prompt_share_its_tokens() -> None:
    usage = RequestUsage(
        [
            _answer(0, 1, (2, 4), ttft_s=0.1, tokens_per_s=9.0, queue_s=0.0),
            _answer(0, 7, (3,), ttft_s=0.3, tokens_per_s=5.0, queue_s=1.0),
            _answer(1, 0, (1,)),
        ],
        "kitchen",
    ).openai()
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (16, 10, 26)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 6}
    assert usage["flowedge"] == {
        "tokens_per_segment": 2.5,
        "tokens_per_round": pytest.approx(10 / 3),
        "accepted_drafts_per_segment": 7 / 4,
        "draft_rows_sent": 30,
        "reused_rows": 8,
        "ttft_s": 0.3,
        "tokens_per_s": 5.0,
        "plain_tokens_per_s": 0.0,
        "queue_s": 1.0,
        "pipeline": "kitchen",
    }


def test_an_answer_that_was_cancelled_has_no_counters() -> None:
    usage = RequestUsage([AnswerUsage(0, 5, 3)]).openai()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 3)
    assert usage["flowedge"]["tokens_per_segment"] == 0.0
