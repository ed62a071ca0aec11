"""Memory that runs out in mid-request ends that request with a CapacityError, and the devices go on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flowedge.core.errors import CapacityError
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.executors.out_of_memory import within_memory
from flowedge.engine.jobs import OpenCache, OpenDraft
from flowedge.models.host.memory_errors import is_out_of_memory
from tests.live.test_live import TEST_S, Models, live_pipeline, models, request, result_of
from tests.support.breadth import dealt_diagonally
from tests.support.loops import in_loop

__all__ = ["models"]  # the fixture

TOKENS = 12
ERRORS = {
    "torch": torch.OutOfMemoryError("CUDA out of memory."),
    "jetson": RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":995'),
}


def fails_at(call: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The function, which raises an error at one of its calls."""
    calls = iter(range(1, 10**9))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise error
        return function(*arguments, **options)

    return wrapped


@pytest.mark.parametrize(
    ("owner", "kind"), dealt_diagonally(("stage", "head", "drafter"), tuple(ERRORS), one_in=2)
)
@in_loop(TEST_S)
async def test_only_the_request_that_lacks_memory_ends(
    models: Models, owner: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ERRORS[kind]
    async with live_pipeline(models) as (node, stages):
        expected, _ = await result_of(node, request("before", max_new_tokens=TOKENS))
        target: Any = {
            "stage": (models.blocks[1], "forward_together"),
            "head": (models.draft.executor.head, "logits"),
            "drafter": (vars(models.draft.executor.drafter)["_forward"], "_embedded"),
        }[owner]
        with monkeypatch.context() as patch:
            patch.setattr(*target, fails_at(3, getattr(*target), error))
            with pytest.raises(
                CapacityError, match=r"do not fit: the memory of cpu ran out; now .* available"
            ):
                await result_of(node, request("short", max_new_tokens=TOKENS))
        tokens, _ = await result_of(node, request("after", max_new_tokens=TOKENS))
        assert tokens == expected
        assert not node.load().sessions
        for stage in stages:
            assert not stage.load().sessions


def test_the_caches_of_the_request_are_freed_and_no_others(models: Models) -> None:
    executor = BlockExecutor(models.blocks[1])
    executor.run(OpenCache("a", 100))
    executor.run(OpenCache("b", 100))
    held = executor.cache_bytes
    with pytest.raises(CapacityError):
        executor.run(OpenCache("c", 1 << 40))  # the allocator of the CPU refuses it
    assert executor.cache_bytes == held
    with pytest.raises(CapacityError):
        executor.run(OpenCache("a", 1 << 40))
    assert executor.cache_bytes == held // 2


def test_a_drafters_session_that_does_not_fit_is_closed(models: Models) -> None:
    executor = HeadExecutor(models.draft.executor.head, models.draft.executor.drafter)
    with pytest.raises(CapacityError, match="drafting and verifying for session s do not fit"):
        executor.run(OpenDraft("s", 1 << 40, 5))


class Tensors:
    """Stands for the tensors of a failed forward."""


def test_what_the_failed_run_held_is_free_before_the_error_is_raised() -> None:
    held: list[weakref.ref[Tensors]] = []
    alive: list[bool] = []

    def run_out() -> None:
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    try:
        with pytest.raises(CapacityError, match="the block does not fit"):
            within_memory(
                "the block does not fit", "cpu", run_out, lambda: alive.append(held[0]() is not None)
            )
    finally:
        gc.enable()
    assert alive == [False]


def test_other_errors_stay_what_they_are() -> None:
    def fail() -> None:
        raise RuntimeError("a kernel has a bug")

    assert not is_out_of_memory(RuntimeError("a kernel has a bug"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError, match="a kernel has a bug"):
        within_memory("it does not fit", "cpu", fail, lambda: None)


def test_the_allocators_of_the_host_are_known() -> None:
    with pytest.raises(Exception) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
