"""A device whose GPU records CUDA graphs needs room for the larger caches, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.agent.agent_config import AgentConfig, DeviceSettings
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.holding.stage_content import LayerSlice
from flowedge.agent.roles.compute_side import ComputeSide, first_that_fits
from flowedge.agent.roles.coordinator import PlannedRoute, PlannedStage
from flowedge.core.errors import CapacityError
from flowedge.core.pipeline_config import DraftQuant, PipelineConfig
from flowedge.device.compute import ComputeChoice, DeviceCompute, DeviceProbe
from flowedge.device.memory import AvailableMemory
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.engine.executors.draft_models import required_memory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch
from flowedge.models.files.config_support import max_positions
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.model_request import OpenedModel
from tests.support.stage_config import stage_config

GPU = DeviceProbe("cuda:0", "a GPU", integrated=True)  # whose memory is read without CUDA
BOARD = DeviceCompute("auto", ComputeChoice("cpu", "a CPU", ("float32",)), GPU)
WITHOUT_GRAPHS = AgentConfig(agent=DeviceSettings(cuda_graphs=False))


def test_a_device_says_whether_it_records() -> None:
    config = AgentConfig()
    on_gpu, on_cpu = (
        DeviceInfo.of(config, 1, compute) for compute in (BOARD, DeviceCompute("cpu", BOARD.cpu))
    )
    assert on_gpu.describe().compute.cuda_graphs
    assert not on_cpu.describe().compute.cuda_graphs
    assert not DeviceInfo.of(WITHOUT_GRAPHS, 1, BOARD).describe().compute.cuda_graphs


def test_plans_count_the_caches_of_each_device() -> None:
    side = ComputeSide("kitchen", AgentConfig(), BOARD)
    target = Checkpoint.open("bundled")
    devices = {
        "gpu:1": pb.Device(name="gpu", compute=pb.Compute(device="cuda:0", cuda_graphs=True)),
        "cpu:1": pb.Device(name="cpu", compute=pb.Compute(device="cpu")),
    }
    request = pb.DraftNodeRole(stages=["gpu:1", "cpu:1"])
    [route] = side.plan_routes(PipelineConfig(dtype="float32"), request, (), target, devices)
    on_gpu, on_cpu = (stage.row_bytes for stage in route.stages)
    assert on_gpu == row_bytes_with_scratch(on_cpu) > on_cpu


def test_a_stage_is_admitted_with_the_caches_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    content, checkpoint = LayerSlice(stage_config(), 0, 4), Checkpoint.open("bundled")
    memory = AgentConfig().memory
    rows = min(memory.kv_tokens, int(checkpoint.config.max_position_embeddings))
    free = content.weight_bytes(checkpoint) + rows * content.row_bytes(checkpoint) + memory.reserve_bytes
    room = AvailableMemory(2 * free, free, "the device's memory")
    monkeypatch.setattr("flowedge.agent.roles.compute_side.read_memory_of", lambda device, settings: room)
    ComputeSide("kitchen", WITHOUT_GRAPHS, BOARD).admit(content, "", checkpoint)
    with pytest.raises(CapacityError, match="KV cache for"):
        ComputeSide("kitchen", AgentConfig(), BOARD).admit(content, "", checkpoint)


@pytest.mark.parametrize(("free", "quant"), [(100, "auto"), (99, "int8"), (60, "int8"), (59, "int4")])
def test_an_automatic_drafter_has_fewer_bits_where_memory_is_short(free: int, quant: str) -> None:
    sizes = {"auto": 100, "int8": 60, "int4": 30}

    def admitted(form: DrafterFormat) -> int:
        if sizes[form.quant] > free:
            raise CapacityError(f"{form.quant} does not fit")
        return sizes[form.quant]

    form, weights = first_that_fits(DrafterFormat(), admitted)
    assert (form.quant, weights) == (quant, sizes[quant])


@pytest.mark.parametrize("wanted", ["auto", "none", "int8"])
def test_a_drafter_that_fits_in_no_form_is_refused_as_it_was_wanted(wanted: DraftQuant) -> None:
    def refused(form: DrafterFormat) -> int:
        raise CapacityError(f"{form.quant} does not fit")

    with pytest.raises(CapacityError, match=f"{wanted} does not fit"):
        first_that_fits(DrafterFormat(wanted), refused)


def test_a_draft_node_loads_the_form_that_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWEDGE_STATE_DIR", str(tmp_path))
    checkpoint, config = Checkpoint.open("bundled"), AgentConfig()
    form = DrafterFormat("int8", "auto", True)
    weights, row = required_memory(checkpoint, ("bundled",), "float32", form=form)
    rows = min(config.memory.kv_tokens, max_positions(checkpoint.config))
    free = weights + row * rows + config.memory.reserve_bytes
    room = AvailableMemory(2 * free, free, "the device's memory")
    monkeypatch.setattr("flowedge.agent.roles.compute_side.read_memory_of", lambda device, settings: room)
    side = ComputeSide("kitchen", config, DeviceCompute("cpu", BOARD.cpu))
    pipeline = PipelineConfig(drafter="bundled", dtype="float32")
    content = LayerSlice(stage_config(), 0, 8)
    target = PlannedRoute(0, checkpoint, (PlannedStage("x:1", content, 1, "v1", 0),))
    assert side.load_draft_models(target, pipeline).draft_quant == "int8"
    with pytest.raises(CapacityError, match="the LM head of bundled"):
        side.load_draft_models(target, pipeline.changed(draft_quant="none"))


DEVICES = {f"cpu:{i}": pb.Device(name=f"cpu{i}", compute=pb.Compute(device="cpu")) for i in range(3)}


@pytest.mark.parametrize("asked", ["auto", "draft-node", "last-stage"])
def test_a_plan_has_the_last_stage_verify(asked: str) -> None:
    side = ComputeSide("kitchen", AgentConfig(), BOARD)
    target = Checkpoint.open("bundled")
    stages = ["cpu:0", "cpu:1"]
    pipeline = PipelineConfig(dtype="float32").changed(verification=asked)
    [route] = side.plan_routes(pipeline, pb.DraftNodeRole(stages=stages), (), target, DEVICES)
    *others, last = (stage.content for stage in route.stages)
    assert last.config.verification == asked
    assert {content.config.verification for content in others} == {"draft-node"}
    assert (target.head_name in last.tensors(target)) is (asked != "draft-node")
    counts = [content.num_layers for content in (*others, last)]
    assert counts == ([5, 3] if asked == "last-stage" else [4, 4])


def test_the_faster_device_gets_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    # Measured, it may take less here than the link saves, and then nobody's 0 s are fast enough.
    monkeypatch.setattr("flowedge.agent.holding.head_choice.draw_seconds", lambda head: 0.01)
    side, content = (
        ComputeSide("kitchen", AgentConfig(), BOARD),
        LayerSlice(stage_config(verification="auto"), 6, 8),
    )
    opened = OpenedModel(Checkpoint.open("bundled"))
    executor = content.load(opened.checkpoint, None)
    assert executor.head is None
    assert side.choose_head(executor, content, opened, 0.0).startswith(
        "the draft node verifies: drawing takes"
    )
    assert executor.head is None
    assert side.choose_head(executor, content, opened, 1e3).startswith(
        "the last stage verifies: drawing takes"
    )
    assert executor.head is not None
    assert executor.stage_spec().draws
    assert executor.weight_bytes == LayerSlice(stage_config(verification="last-stage"), 6, 8).weight_bytes(
        opened.checkpoint
    )


def test_a_head_that_does_not_fit_leaves_the_choice_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    side, content = (
        ComputeSide("kitchen", AgentConfig(), BOARD),
        LayerSlice(stage_config(verification="auto"), 6, 8),
    )
    opened = OpenedModel(Checkpoint.open("bundled"))
    executor = content.load(opened.checkpoint, None)
    room = AvailableMemory(1 << 30, 1 << 10, "the device's memory")
    monkeypatch.setattr("flowedge.agent.holding.head_choice.read_memory_of", lambda device, settings: room)
    said = side.choose_head(executor, content, opened, 1e3)
    assert said.startswith("the draft node verifies: the LM head of bundled does not fit on device kitchen")
    assert executor.head is None
