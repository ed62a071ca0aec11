"""An answer that outgrows its caches, where these take their memory at once, goes on in larger ones."""

from __future__ import annotations

import sys

import pytest

from flowedge.client import Client, Recovery
from tests.support.processes import AgentProcess, agents, become_pipeline, running
from tests.support.whole_answers import whole_answer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
STORY = "Tell me a long story about a hen and a goose."
TOKENS = 500  # more than are expected of an answer
AT_ONCE = """
import sys
from flowedge.cli.main import main
from flowedge.engine.executors.draft_models import DraftModels

DraftModels.caches_on_demand = False  # as on a GPU
sys.argv[0] = "flowedge"
main()
"""


@pytest.mark.proof
def test_a_long_answer_goes_on_in_larger_caches() -> None:
    settings = {"limits": {"sessions": 1 << 16}}  # so that a session's part of the memory is small
    at_once = AgentProcess("d0", settings=settings, command=[sys.executable, "-c", AT_ONCE])
    asked = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    told: list[Recovery | None] = []
    with agents(["d1", "v1", "v2"], settings=settings) as (as_written, *stages), running(at_once):
        for draft_node, stage in zip((as_written, at_once), stages, strict=True):
            become_pipeline([draft_node, stage])
        with Client(as_written.address) as client:
            whole = whole_answer(client, STORY, **asked)
        with Client(at_once.address) as client:
            answer = client.generate(STORY, on_recovering=told.append, **asked).result()
        at_once.line("an answer goes on in larger caches")
    assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)
    assert not told, "nothing was lost, so that nobody is told"
