"""Weights that do not fit a device are refused before they are loaded, with the sums."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from flowedge.core.errors import CapacityError
from flowedge.device.cgroup import CgroupMemory, cgroup_memory
from flowedge.device.memory import (
    GIB,
    AvailableMemory,
    CudaMemory,
    MemorySettings,
    available_cuda_memory,
    read_available_memory,
    read_memory_of,
    resident_bytes,
)
from flowedge.engine.executors.draft_models import DraftModels, required_memory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.network.grpc_status import from_status
from flowedge.planning.fit import admit, session_rows
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from tests.support.processes import agents
from tests.support.stage_config import stage_config

MEMINFO = "MemTotal:        8000 kB\nMemFree:  100 kB\nMemAvailable:    5000 kB\nHugePages_Total: 0\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A device of 8,000 KiB, with no control group."""
    write(tmp_path / "proc/meminfo", MEMINFO)
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_without_a_limit_it_is_what_the_device_has(root: Path) -> None:
    assert read_available_memory(None, root) == AvailableMemory(
        8000 * 1024, 5000 * 1024, "the device's memory"
    )


def test_the_least_of_all_groups_above_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/system.slice/agent.service")
    v2 = root / "sys/fs/cgroup"
    write(v2 / "system.slice/agent.service/memory.max", "max")
    write(v2 / "system.slice/agent.service/memory.high", 3_000_000)
    write(v2 / "system.slice/agent.service/memory.current", 1_000_000)
    write(v2 / "system.slice/agent.service/memory.stat", "anon 1\ninactive_file 400000\nactive_file 9")
    write(v2 / "system.slice/memory.max", 4_000_000)
    write(v2 / "system.slice/memory.current", 3_900_000)
    write(v2 / "system.slice/memory.stat", "inactive_file 900000")
    assert cgroup_memory(root) == [
        CgroupMemory("/system.slice/agent.service", 3_000_000, 600_000),
        CgroupMemory("/system.slice", 4_000_000, 3_000_000),
    ]
    assert read_available_memory(None, root) == AvailableMemory(
        3_000_000, 1_000_000, "the limit of cgroup /system.slice"
    )


@pytest.mark.parametrize("path", ["/docker/1a2b", "/../.."])
def test_version_1_and_a_path_that_only_the_host_can_see(root: Path, path: str) -> None:
    write(root / "proc/self/cgroup", f"12:cpu,memory:{path}\n3:cpuset:/\n0::/elsewhere")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", 2_000_000)
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", 1_500_000)
    write(root / "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500000")
    assert read_available_memory(None, root) == AvailableMemory(2_000_000, 1_000_000, "the limit of cgroup /")


def test_the_settings_limit_counts_what_the_process_holds(root: Path) -> None:
    held = resident_bytes()
    room = read_available_memory(MemorySettings(limit_gib=1000 / GIB), root)
    assert room == AvailableMemory(1000, 0, "the setting memory.limit_gib")
    write(root / "proc/meminfo", MEMINFO.replace("000 kB", "000000000 kB"))
    room = read_available_memory(MemorySettings(limit_gib=2 * held / GIB), root)
    assert 0 < room.available < 2 * held == room.total


@pytest.mark.parametrize("integrated", [True, False])
def test_a_gpu_of_its_own_has_memory_of_its_own(integrated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(is_integrated=integrated)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (7, 8))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 9)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 2)
    segments = [
        {"device": 0, "segment_pool_id": (0, 0), "total_size": 3, "allocated_size": 1},
        {"device": 0, "segment_pool_id": (0, 1), "total_size": 6, "allocated_size": 1},  # of CUDA graphs
        {"device": 1, "segment_pool_id": (0, 2), "total_size": 50, "allocated_size": 0},
    ]
    monkeypatch.setattr("torch.cuda.memory_snapshot", lambda: segments)
    room = read_memory_of("cuda:0")
    assert (room == AvailableMemory(8, 9, "the GPU's memory")) is not integrated
    assert (room.total == read_available_memory().total) is integrated


def test_the_idle_reserve_of_the_allocator_is_available_and_its_tensors_count_towards_the_limit() -> None:
    cuda = CudaMemory(total=8 * GIB, free=GIB, reserved=3 * GIB, allocated=2 * GIB, integrated=False)
    host = AvailableMemory(16 * GIB, 5 * GIB, "the device's memory")
    bound = "the GPU's memory"
    assert available_cuda_memory(cuda, host, None) == AvailableMemory(8 * GIB, 2 * GIB, bound)
    board = available_cuda_memory(replace(cuda, integrated=True), host, MemorySettings())
    assert board == AvailableMemory(16 * GIB, 6 * GIB, "the device's memory")
    graphs = replace(cuda, recorded=GIB // 2)
    assert available_cuda_memory(graphs, host, None).available == GIB + GIB // 2
    assert available_cuda_memory(graphs, host, MemorySettings(limit_gib=2.5)).available == 0
    own = available_cuda_memory(cuda, host, MemorySettings(limit_gib=2.5))
    assert own == AvailableMemory(int(2.5 * GIB), GIB // 2, "the setting memory.limit_gib")
    shared = available_cuda_memory(replace(cuda, integrated=True), host, MemorySettings(limit_gib=4.0))
    assert shared.available < 2 * GIB, "the pages of the process count beside those of its tensors"


def test_the_sums_are_said() -> None:
    settings = MemorySettings(reserve_gib=0.5, kv_tokens=1000)
    memory = AvailableMemory(4 * GIB, 3 * GIB, "the device's memory")

    def check(what: str, row_bytes: int, max_rows: int) -> None:
        admit(
            what,
            "kitchen",
            weights=2 * GIB,
            row_bytes=row_bytes,
            max_rows=max_rows,
            settings=settings,
            memory=memory,
        )

    check("it", GIB // 2000, 4096)
    check("it", GIB // 200, 100)
    with pytest.raises(CapacityError) as caught:
        check("block", GIB // 1000 + 1, 4096)
    assert str(caught.value).startswith(
        "block does not fit on device kitchen: weights 2.00 GiB + KV cache for 1000 tokens 1.00 GiB + "
        "reserve 0.50 GiB = 3.50 GiB, and 3.00 GiB of 4.00 GiB are available, by the device's memory; free"
    )


def test_a_session_always_has_a_row_and_never_the_reserve() -> None:
    assert session_rows(1, MemorySettings(reserve_gib=10**6)) == 1
    free = read_available_memory().available
    assert session_rows(1, MemorySettings(reserve_gib=1.0)) <= free


@pytest.mark.parametrize(
    "drafter", [("bundled",), ("bundled-small", "ngram"), ("bundled-eagle3",), ("bundled", "recall"), ()]
)
def test_a_draft_node_takes_what_its_files_say(drafter: tuple[str, ...]) -> None:
    checkpoint = Checkpoint.open("bundled")
    weights, row = required_memory(checkpoint, drafter, "float32")
    models = DraftModels.load(checkpoint, drafter, "float32")
    assert weights == models.weight_bytes
    assert row * 1000 == models.drafter_bytes(2000) - models.drafter_bytes(1000)


def test_an_agent_refuses_what_its_limit_has_no_room_for() -> None:
    with (
        agents(["small-v1"], settings={"memory": {"limit_gib": 0.3}}) as (agent,),
        grpc.insecure_channel(agent.address) as channel,
    ):
        stub = rpc.AgentStub(channel)
        role = pb.StageRole(
            pipeline="p",
            config=stage_config().to_json(),
            layer_stop=4,
            protocol_version=PROTOCOL_VERSION,
            downstream="x:1",
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.BecomeStage(role, timeout=120))
        error = from_status(caught.value, "small")
        assert isinstance(error, CapacityError)
        assert re.search(
            r"layers 0 to 3 of bundled \(none\) does not fit on device small-.*: weights 0\.0\d+ GiB "
            r"\+ KV cache for 2048 tokens 0\.0\d+ GiB \+ reserve 0\.25 GiB = 0\.\d+ GiB, "
            r"and 0\.\d+ GiB of 0\.30 GiB are available, by the setting memory\.limit_gib; free memory",
            str(error),
        )
        device = stub.Describe(pb.DescribeRequest(), timeout=20)
        assert (device.role, device.weight_bytes, device.memory_total) == ("", 0, int(0.3 * GIB))
