"""What a role leaves loaded is taken by a role that would load the same, and freed otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from flowedge.agent.holding.left_loaded import LeftLoaded, LoadedModel
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.live.compute_thread import ComputeThread

LAYERS = PipelineConfig(model="bundled"), 0, 4
OTHERS = PipelineConfig(model="bundled"), 4, 8


class Executor:
    """Notes what becomes of it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def drop_sessions(self) -> None:
        self.done.append("dropped")

    def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread("v1")
    yield thread
    thread.stop(10.0)


def left_after(
    compute: ComputeThread, seconds: float, then: Callable[[LeftLoaded], Awaitable[object]]
) -> tuple[object, list[str]]:
    """Return what `then` returns after an executor was left, and what became of the executor."""
    executor: Any = Executor()

    async def run() -> object:
        left = LeftLoaded(compute, seconds)
        left.leave(LoadedModel(LAYERS, executor))
        result = await then(left)
        await compute.run(lambda: None)
        return result

    result = asyncio.run(run())
    return (result.executor is executor if isinstance(result, LoadedModel) else result), executor.done


async def take_the_same(left: LeftLoaded) -> object:
    taken = left.take((PipelineConfig(model="bundled"), 0, 4))
    left.free()  # it is another's now
    return taken


async def take_others(left: LeftLoaded) -> object:
    return left.take(OTHERS)


async def leave_others(left: LeftLoaded) -> object:
    executor: Any = Executor()
    left.leave(LoadedModel(OTHERS, executor))
    taken = left.take(LAYERS)
    assert left.take(OTHERS) is not None, "of a draft node that is a stage as well"
    return taken


async def wait(left: LeftLoaded) -> object:
    await asyncio.sleep(0.05)
    return left.take(LAYERS)


@pytest.mark.parametrize(
    ("seconds", "then", "taken", "done"),
    [
        (60.0, take_the_same, True, ["dropped"]),
        (60.0, take_others, None, ["dropped", "closed"]),
        (60.0, leave_others, True, ["dropped"]),
        (0.0, wait, None, ["dropped", "closed"]),
    ],
)
def test_what_is_left_is_taken_or_freed(
    compute: ComputeThread,
    seconds: float,
    then: Callable[[LeftLoaded], Awaitable[object]],
    taken: bool | None,
    done: list[str],
) -> None:
    assert left_after(compute, seconds, then) == (taken, done)
