"""What this device is and what it can do: clocks, heat, memory, and the kernels that run on it."""

from __future__ import annotations

from flowedge.device.compute import CPU, DeviceProbe
from flowedge.device.largest_block import KEEP_BYTES, try_largest_block
from flowedge.device.memory import read_available_memory
from flowedge.doctor import board, compute, memory
from flowedge.doctor.finding import Finding
from flowedge.doctor.memory import BlockFacts


def judge_hardware(device: str, *, libraries: bool = True) -> list[Finding]:
    """Examine this device, which is called `device`.

    libraries: whether what takes seconds and a process of its own is tried: PyTorch, and a block of memory.
    """
    findings = board.judge_board(board.board_facts(), device)
    if libraries:
        tried = compute.try_compute()
        findings += compute.judge_compute(tried, device)
        findings += memory.judge_blocks(_blocks(tried.gpu), device)
    return findings


def _blocks(gpu: DeviceProbe | None) -> list[BlockFacts]:
    """Try the largest block of the CPU, and of a GPU that computes."""
    free = {CPU: read_available_memory().available}
    if gpu is not None and not gpu.problem:
        found = free[CPU] if gpu.integrated else gpu.memory_free
        free[gpu.device] = max(0, found - KEEP_BYTES)
    return [BlockFacts(name, most, *try_largest_block(name, most)) for name, most in free.items()]
