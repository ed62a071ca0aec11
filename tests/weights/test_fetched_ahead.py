"""A spare has the weights of all stages before it takes the place of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.client import Client
from tests.support.processes import agents, running
from tests.support.whole_answers import whole_answer
from tests.weights.empty_device import EmptyDevice

ASKED = {"max_new_tokens": 120, "ignore_eos": True, "temperature": 1.0, "seed": 5}
STORY = "Tell me a long story about a hen and a goose."


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_spare_fetches_while_nobody_asks(tmp_path: Path) -> None:
    v1, v2, spare = devices = [EmptyDevice(name, tmp_path) for name in ("v1", "v2", "v3")]
    with running(*devices):
        kept = {"model": "bundled", "stages": [v1.address, v2.address], "spares": [spare.address]}
        with agents(["d0"], settings={"pipeline": kept}) as (draft_node,):
            client = Client(draft_node.address)
            client.await_ready(120)
            for layers in ("0 to 3", "4 to 7"):
                spare.line(f"layers {layers} of bundled are in the cache")
            fetches = spare.text().count(": fetched ")
            assert fetches > 0
            whole = whole_answer(client, STORY, **ASKED)
            answer = client.generate(STORY, **ASKED)  # type: ignore[arg-type]
            for _ in answer:
                if v2.running and len(answer.token_ids) >= 20:
                    v2.kill()
            assert answer.token_ids == whole.token_ids
            assert spare.describe().role == "stage"
            assert spare.text().count(": fetched ") == fetches
            client.close()
