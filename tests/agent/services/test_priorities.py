"""A batch answer gives its room to a more urgent one, and goes on as if nothing had been."""

from __future__ import annotations

import pytest

from flowedge.client import Client, Recovery
from tests.support.breadth import dealt
from tests.support.processes import agents, become_pipeline

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
STORY = "Tell me a long story about a hen and a goose."
TOKENS = 160


@pytest.mark.parametrize("temperature", dealt([0.0, 1.0], (1.0).__eq__))
def test_a_batch_answer_pauses_for_an_urgent_one(temperature: float) -> None:
    settings = {"limits": {"sessions": 1, "queued_requests": 2}}
    with agents(["d0", "v1"], settings=settings) as started:
        become_pipeline(started)
        with Client(started[0].address) as client:
            whole = client.generate(
                STORY, max_new_tokens=TOKENS, ignore_eos=True, temperature=temperature, seed=3
            ).result()
            told: list[Recovery | None] = []
            batch = client.generate(
                STORY,
                max_new_tokens=TOKENS,
                ignore_eos=True,
                temperature=temperature,
                seed=3,
                priority="batch",
                on_recovering=told.append,
            )
            chunks = iter(batch)
            next(chunks)
            before = len(batch.token_ids)
            urgent = client.generate("Hi", max_new_tokens=20, ignore_eos=True).result()
            assert len(urgent.token_ids) == 20
            assert before < TOKENS, "the batch answer was complete before"
            for _ in chunks:
                pass
    assert (batch.token_ids, batch.text) == (whole.token_ids, whole.text)
    assert told[0] is not None
    assert (told[0].device, told[-1]) == ("d0", None)
    assert "to another one" in told[0].reason
