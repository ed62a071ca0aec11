"""The largest block of memory that can be had at once."""

from __future__ import annotations

import resource
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.device.largest_block import STEPS, largest_block, try_largest_block
from flowedge.device.memory import read_available_memory


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_it_is_found_to_a_64th(most: int, there: int) -> None:
    asked: list[int] = []

    def can_have(size: int) -> bool:
        asked.append(size)
        return size <= there

    found = largest_block(most, can_have)
    assert 0 <= found <= min(most, there) and len(asked) <= STEPS + 1
    assert min(most, there) - found <= most // 2**STEPS + 1


def test_the_memory_of_this_machine_can_be_had() -> None:
    free = read_available_memory().available
    assert try_largest_block("cpu", free) == (free, "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2 << 30
    monkeypatch.setattr(
        "flowedge.device.largest_block.module_command",
        lambda module: ["prlimit", f"--as={limit}", sys.executable, "-m", module],
    )
    found, problem = try_largest_block("cpu", 8 << 30)
    assert not problem and limit // 2 < found < limit
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != limit, "of the trial alone"


def test_what_keeps_a_trial_from_ending_is_told() -> None:
    assert try_largest_block("cuda:99", 1 << 20)[1].startswith("the trial ended with 1: ")
    assert try_largest_block("cpu", 1 << 20, 0.001) == (0, "the trial did not end within 0.001 s")
