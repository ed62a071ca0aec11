"""A device whose GPU records CUDA graphs needs room for the larger caches, before anything is loaded."""

from __future__ import annotations

import pytest

from flowedge.agent.config.agent_config import AgentConfig, DeviceSettings
from flowedge.agent.device_info import DeviceInfo
from flowedge.agent.roles.compute_side import ComputeSide
from flowedge.agent.roles.stage_content import LayerSlice
from flowedge.core.errors import CapacityError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.graphs.shapes import row_bytes_with_scratch
from flowedge.system.compute import ComputeChoice, DeviceCompute, DeviceTrial
from flowedge.system.memory import AvailableMemory
from flowedge.v1 import agent_pb2 as pb

GPU = DeviceTrial("cuda:0", "a GPU", integrated=True)  # whose memory is read without CUDA
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
    request = pb.DraftNodeRole(model="bundled", stages=["gpu:1", "cpu:1"], dtype="float32")
    [route] = side.plan_routes(request, (), target, devices)
    on_gpu, on_cpu = (stage.row_bytes for stage in route.stages)
    assert on_gpu == row_bytes_with_scratch(on_cpu) > on_cpu


def test_a_stage_is_admitted_with_the_caches_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    content, checkpoint = LayerSlice("bundled", 0, 4), Checkpoint.open("bundled")
    memory = AgentConfig().memory
    rows = min(memory.kv_tokens, int(checkpoint.config.max_position_embeddings))
    free = content.weight_bytes(checkpoint) + rows * content.row_bytes(checkpoint) + memory.reserve_bytes
    room = AvailableMemory(2 * free, free, "the device's memory")
    monkeypatch.setattr("flowedge.agent.roles.compute_side.read_memory_of", lambda device, settings: room)
    ComputeSide("kitchen", WITHOUT_GRAPHS, BOARD).admit(content, "", checkpoint)
    with pytest.raises(CapacityError, match="KV cache for"):
        ComputeSide("kitchen", AgentConfig(), BOARD).admit(content, "", checkpoint)
