"""Which of the agents on the network serve a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowedge.cli.pipelines.last_draft_node import KnownDraftNode, LastDraftNodes
from flowedge.cli.pipelines.model_choice import NoModelError
from flowedge.cli.pipelines.opening import open_planned
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client import Device
from flowedge.client.assembly import OnProgress, PipelineSpec
from flowedge.core.errors import BadRequestError, DeadlineError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.discovery.advertised_device import AdvertisedDevice
from flowedge.discovery.settings import DiscoverySettings
from flowedge.version import PROTOCOL_VERSION

NONSENSE = "nonsense"  # the kind of an agent whose answer cannot be read
REQUEST = PipelineRequest(model="bundled", drafter=("bundled",))
IDLE = Device(
    id="",
    name="",
    kind="test",
    address="",
    memory_total=0,
    memory_available=0,
    protocol_version=PROTOCOL_VERSION,
    version="0.1.0",
    role="idle",
    layers=(0, 0),
    resident_bytes=0,
    weight_bytes=0,
    cache_bytes=0,
    stage_addresses=(),
    pipeline="",
)


class Network:
    """Agents as `discover` and Describe would show them, and a list of the pipelines that were assembled.

    leader: which the agent that is asked first names as the draft node; "" for none.
    """

    leader = ""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, devices: dict[str, Device], protocol: int) -> None:
        self.devices = devices
        self.assembled: list[PipelineSpec] = []
        self.records = [
            AdvertisedDevice(f"device {address}", address[-1], address, "test", 1, protocol, "0.1.0")
            for address in devices
        ]

        async def discover(timeout_s: float, *, settings: DiscoverySettings) -> list[AdvertisedDevice]:
            return self.records

        monkeypatch.setattr("flowedge.cli.pipelines.network.discover", discover)
        monkeypatch.setattr("flowedge.cli.pipelines.answering.discover", discover)

        def describe(address: str, name: str | None = None) -> Device:
            if address not in devices:
                raise DeviceLostError(address, "it is silent")
            if devices[address].kind == NONSENSE:
                raise ValueError("an answer that nobody foresaw")
            return replace(devices[address], id=address[-1])

        monkeypatch.setattr("flowedge.cli.pipelines.answering.describe", describe)
        monkeypatch.setattr("flowedge.cli.pipelines.opening.describe", describe)

        def assemble(
            spec: PipelineSpec, report: OnProgress, *, on_leader: Callable[[PipelineSpec], None], **_: object
        ) -> None:
            self.assembled.append(spec)
            if self.leader:
                self.assembled.append(spec.led_by(self.leader))
                on_leader(self.assembled[-1])

        monkeypatch.setattr("flowedge.cli.pipelines.opening.assemble", assemble)


@pytest.fixture(autouse=True)
def no_draft_node_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWEDGE_STATE_DIR", str(tmp_path / "state"))


def network(monkeypatch: pytest.MonkeyPatch, *addresses: str, protocol: int = PROTOCOL_VERSION) -> Network:
    devices = {a: replace(IDLE, name=a, address=a) for a in addresses}
    return Network(monkeypatch, devices, protocol)


def use(request: PipelineRequest = REQUEST) -> str:
    with open_planned(request, lambda device, message: None, completed) as planned:
        return planned.draft_node


def completed(request: PipelineRequest) -> PipelineRequest:
    """Complete a request, where nobody can be asked for a model."""
    if not request.model:
        raise NoModelError("no model is named")
    return request


def test_the_first_idle_agent_drafts_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
    assert use() == "10.0.0.1:1"
    (spec,) = found.assembled
    assert (spec.draft_node, spec.stages) == ("10.0.0.1:1", ("10.0.0.2:1", "10.0.0.3:1"))


def test_the_agent_that_is_named_as_the_draft_node_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
    found.leader = "10.0.0.3:1"
    with open_planned(REQUEST, lambda device, message: None, completed) as planned:
        assert planned.draft_node == "10.0.0.3:1"
        assert planned.found is not None and planned.found.id == "1", "its own id, the last digit"
    first, again = found.assembled
    assert first.hands_on and not again.hands_on, "it is asked to name another one once"
    assert planned.spec == again and again.stages == ("10.0.0.1:1", "10.0.0.2:1")


def test_a_split_says_how_many_stages_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1")
    use(REQUEST.changed(split=(5, 3)))
    assert found.assembled[0].stages == ("10.0.0.2:1", "10.0.0.3:1")
    with pytest.raises(BadRequestError, match="only 3 idle agents are left"):
        use(REQUEST.changed(split=(2, 2, 2, 2)))


def test_a_pipeline_that_is_ready_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1")
    found.devices["10.0.0.2:1"] = replace(
        IDLE,
        role="draft node",
        config=PipelineConfig(drafter="bundled"),
        stage_addresses=("10.0.0.1:1",),
    )
    assert use() == "10.0.0.2:1"
    assert found.assembled == []


@pytest.mark.parametrize(
    ("changes", "used"),
    [({}, True), ({"quant": "int4"}, True), ({"quant": "int8"}, False), ({"drafter": ()}, False)],
)
def test_without_a_model_the_pipeline_that_runs_is_used(
    changes: dict[str, Any], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1")
    config = PipelineConfig(model="/models/g.gguf", drafter="ngram", quant="int4", split=(9, 9))
    found.devices["10.0.0.2:1"] = replace(
        IDLE, role="draft node", config=config, stage_addresses=("10.0.0.1:1", "10.0.0.5:1")
    )
    asked = PipelineRequest(**changes)
    if used:
        assert use(asked) == "10.0.0.2:1"
    else:
        with pytest.raises(NoModelError):  # idle agents are left, but nobody says for which model
            use(asked)
    assert found.assembled == []


@pytest.mark.parametrize(
    ("split", "layers", "served"),
    [
        ((), (5, 3), True),
        ((5, 3), (5, 3), True),
        ((3, 5), (5, 3), False),
    ],
)
def test_a_pipeline_is_recognised_by_its_split(
    split: tuple[int, ...], layers: tuple[int, ...], served: bool
) -> None:
    device = replace(
        IDLE,
        role="draft node",
        config=PipelineConfig(drafter="bundled", split=layers),
        stage_addresses=("10.0.0.1:1", "10.0.0.3:1"),
    )
    spec = REQUEST.changed(split=split).spec("10.0.0.2:1", ("10.0.0.1:1", "10.0.0.3:1"))
    assert spec.is_served_by(device) is served


def test_a_pipeline_of_another_model_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1")
    found.devices["10.0.0.1:1"] = replace(IDLE, name="kitchen", role="stage")
    with pytest.raises(FlowEdgeError, match=r"kitchen \(stage\)"):
        use()


def test_an_agent_that_is_alone_is_the_whole_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1")
    assert use() == "10.0.0.1:1"
    assert (found.assembled[0].stages, found.assembled[0].chooses) == (("10.0.0.1:1",), False)


def test_loopback_and_network_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    assert use() == "127.0.0.1:2"
    assert found.assembled[0].stages == ("127.0.0.1:3",)


def test_the_draft_node_of_a_pipeline_on_this_machine_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "127.0.0.1:2", "127.0.0.1:3")
    use()
    assert LastDraftNodes("").recall() == KnownDraftNode("127.0.0.1:2", "2", "127.0.0.1:2")


def test_nobody_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch)
    with pytest.raises(DeadlineError, match="--stages N"):
        use()


def test_another_protocol_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", protocol=PROTOCOL_VERSION + 1)
    with pytest.raises(ProtocolError, match="device 10"):
        use()


def test_an_agent_is_one_stage_at_most() -> None:
    with pytest.raises(BadRequestError, match="named twice"):
        PipelineSpec(draft_node="10.0.0.1:1", stages=("10.0.0.2:1",) * 2, model="m", drafter=("d",))


def test_an_announced_agent_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1")
    del found.devices["10.0.0.2:1"]
    assert use() == "10.0.0.1:1"
    assert found.assembled[0].stages == ("10.0.0.3:1", "10.0.0.4:1")
    assert "device 10.0.0.2:1 is left out" in caplog.text


def test_the_first_reason_is_told_when_no_announced_agent_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:1")
    found.devices.clear()
    with pytest.raises(DeviceLostError, match=r"10\.0\.0\.1:1: it is silent"):
        use()


def test_a_false_announcement_of_an_id_does_not_hide_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:2")
    found.records += [
        replace(record, name="false", address="10.0.0.9:9", cluster="0123456789abcdef")
        for record in found.records
    ]
    assert use() == "10.0.0.1:1"


def test_an_answer_that_cannot_be_read_leaves_one_agent_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = network(monkeypatch, "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3")
    found.devices["10.0.0.1:1"] = replace(IDLE, kind=NONSENSE)
    assert use() == "10.0.0.2:2"
    assert "device 10.0.0.1:1 is left out" in caplog.text
