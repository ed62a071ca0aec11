"""What the page shows of devices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.client import Device
from flowedge.gateway.page.devices import DeviceReply
from flowedge.gateway.page.picture import DRAFT_NODE, STAGE, of_device, of_pipeline
from flowedge.version import PROTOCOL_VERSION


def reply(role: str, layers: tuple[int, int]) -> DeviceReply:
    device = Device(
        id="1",
        name="kitchen",
        kind="board",
        address="10.0.0.1:1",
        memory_total=8 << 30,
        memory_available=4 << 30,
        protocol_version=PROTOCOL_VERSION,
        version="0.1.0",
        role=role,
        layers=layers,
        resident_bytes=1,
        weight_bytes=7,
        cache_bytes=5,
        stage_addresses=(),
        pipeline="",
    )
    return DeviceReply("10.0.0.1:1", device, present=True)


def test_a_draft_node_that_is_a_stage_as_well_has_a_card_for_each() -> None:
    both = reply("draft node", (0, 4))
    drafts, computes = (of_device(both, part, in_use=True) for part in (DRAFT_NODE, STAGE))
    assert (drafts["name"], drafts["layers"], drafts["weight_bytes"], drafts["cache_bytes"]) == (
        "kitchen",
        None,
        7,
        0,
    )
    assert (computes["name"], computes["layers"], computes["weight_bytes"], computes["cache_bytes"]) == (
        "kitchen+",
        [0, 4],
        0,
        5,
    )
    stage = of_device(reply("stage", (0, 4)), STAGE, in_use=True)
    assert (stage["name"], stage["layers"], stage["weight_bytes"]) == ("kitchen", [0, 4], 7)


def test_a_device_that_is_slowed_down_says_by_what() -> None:
    cool = reply("stage", (0, 4))
    assert cool.device is not None
    hot = replace(cool, device=replace(cool.device, throttled="cpufreq-cpu0\x1b[2J"))
    told = [of_device(each, STAGE, in_use=True)["throttled"] for each in (cool, hot)]
    assert told[0] == "" and told[1].startswith("cpufreq-cpu0") and "\x1b" not in told[1]


@pytest.mark.parametrize("ready", [True, False])
def test_the_plan_of_a_pipeline_that_is_ready_is_shown_with_what_is_proposed(ready: bool) -> None:
    plan, proposal = "layers by what the devices measured: kitchen 4", "kitchen takes 3.0 times as long"
    planned = reply("draft node", (0, 4))
    assert planned.device is not None
    planned = replace(planned, device=replace(planned.device, plan=plan, proposal=proposal))
    member: Any = SimpleNamespace(
        label="p",
        model="m",
        ready=ready,
        recovering=False,
        problem="",
        leases=0,
        progress=SimpleNamespace(devices={}),
    )
    shown = of_pipeline(member, [(planned, DRAFT_NODE), (planned, STAGE)], None)
    assert (shown["plan"], shown["proposal"]) == ((plan, proposal) if ready else ("", ""))
