"""Eight sessions of all kinds at once over sockets, of which some are cancelled, answer as each alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from flowedge.core.request import Failed, Finished, Output, Request, Tokens
from flowedge.live.live_draft_node import LiveDraftNode
from flowedge_testbed.paced.express_faults import parse_express_fault
from tests.equality.conftest import expected
from tests.live.test_live import TEST_S, Models, live_pipeline, models, start, until
from tests.support.breadth import dealt
from tests.support.loops import in_loop
from tests.support.mixed_sessions import MixedSession, mixed_sessions

__all__ = ["models"]  # the fixture

SPAN_S = 0.5
TOKENS = 20


def prompt(length: int) -> tuple[int, ...]:
    """A text of random tokens of the bundled model, the same for all lengths."""
    return tuple(np.random.default_rng(7).integers(3, 4000, size=length).tolist())


async def outputs_of(node: LiveDraftNode, session: MixedSession) -> list[Output]:
    """Ask for a session's answer, and give it up at its time."""
    await asyncio.sleep(session.start)
    generation = start(node, session.request)
    outputs: list[Output] = []

    async def read() -> None:
        while not outputs or isinstance(outputs[-1], Tokens):
            output = await generation.next_output(120)
            assert output is not None
            outputs.append(output)

    try:
        await asyncio.wait_for(read(), session.cancel_after)
    except asyncio.TimeoutError:
        assert session.cancel_after is not None
    finally:
        node.end(generation)
    return outputs


@pytest.mark.parametrize("fault", dealt(("", "cut", "reorder:0.1"), "reorder:0.1".__eq__))
@in_loop(TEST_S)
async def test_mixed_sessions_answer_as_each_alone(models: Models, fault: str) -> None:
    rng = np.random.default_rng(len(fault))
    sessions = mixed_sessions(rng, prompt, TOKENS, SPAN_S)
    assert any(session.cancel_after is not None for session in sessions)
    alone = [plain(session.request) for session in sessions]
    async with live_pipeline(models, parse_express_fault(fault)) as (node, stages):
        answers = await asyncio.gather(*(outputs_of(node, session) for session in sessions))
        for session, outputs, tokens in zip(sessions, answers, alone, strict=True):
            assert not any(isinstance(output, Failed) for output in outputs)
            session.check(outputs, tokens)
        assert sum(isinstance(outputs[-1], Finished) for outputs in answers if outputs) >= 4
        await until(lambda: not any(stage.load().sessions for stage in stages))
        assert node.load().sessions == node.load().waiting == 0


def plain(asked: Request) -> tuple[int, ...]:
    return expected(asked.prompt, asked.sampling, asked.max_new_tokens, "none")
