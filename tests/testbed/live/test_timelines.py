"""Timelines of real agents: fetched over the network, in the caller's time, while they serve."""

from __future__ import annotations

import time
import uuid

import pytest

from flowedge.client import Client
from flowedge.core.errors import DeviceError, DeviceLostError
from flowedge_testbed.live.timelines import fetch_timelines, measure_offset
from tests.support.processes import agents


def test_the_clocks_of_one_machine_are_one() -> None:
    with agents([f"clock-{uuid.uuid4().hex[:8]}"]) as (agent,):
        offset = measure_offset(agent.address)
        assert offset.uncertainty > 0
        assert abs(offset.offset) <= offset.uncertainty
        with pytest.raises(DeviceError, match="no role"):
            fetch_timelines([agent.address], "any")
    with pytest.raises(DeviceLostError):
        measure_offset(agent.address, answer_s=5)


def test_timelines_of_a_session(cluster4: str) -> None:
    with Client(cluster4, timeout_s=120) as client:
        stages = client.describe().stage_addresses
        asked = time.monotonic()
        generation = client.generate("Tell me of a river.", max_new_tokens=12, strategy="flowspec").result()
        answered = time.monotonic()
        session = generation.session
        other = client.generate("Count to a hundred.", max_new_tokens=40)
        next(other)
        found = fetch_timelines([cluster4, *stages], session)  # while another session runs
        expected = client.generate("Count to a hundred.", max_new_tokens=40).result()
        assert other.result().token_ids == expected.token_ids
    draft_node = found[0]
    for timeline in found:
        assert timeline.dropped == 0
        slack = timeline.offset.uncertainty + draft_node.offset.uncertainty
        assert asked - slack <= min(event.start for event in timeline.events)
        busy = [event for event in timeline.events if event.kind in ("forward", "draft", "verify")]
        assert busy
        assert max(event.start for event in busy) <= answered + slack  # the last draft layer may go on
    assert draft_node.events[0].kind == "request"
    assert fetch_timelines([stages[0]], "never")[0].events == ()
