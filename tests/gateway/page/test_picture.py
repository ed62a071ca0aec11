"""What the page shows of devices."""

from __future__ import annotations

from flowedge.client import Device
from flowedge.gateway.page.devices import DeviceReply
from flowedge.gateway.page.picture import DRAFT_NODE, STAGE, of_device
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
