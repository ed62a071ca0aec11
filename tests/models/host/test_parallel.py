"""Steps run in several threads, begin in order, and stop after an error or an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.host.parallel import run_steps
from tests.models.conftest import threads_of_torch

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    with threads_of_torch(2):
        yield


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_step_runs_once_and_begins_in_order(threads: int) -> None:
    begun: list[int] = []
    run_steps([partial(begun.append, index) for index in range(100)], threads)
    assert sorted(begun) == list(range(100))
    if threads == 1:
        assert begun == list(range(100))
    run_steps([], threads)


def test_steps_run_together_each_with_one_thread_of_torch() -> None:
    together = threading.Barrier(2, timeout=WAIT_S)
    seen: list[int] = []

    def step() -> None:
        together.wait()  # broken unless two steps run at a time
        seen.append(torch.get_num_threads())

    run_steps([step, step], 2)
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join(WAIT_S)
    assert later == [2]


def test_the_first_error_in_order_is_raised_and_no_further_step_begins() -> None:
    together = threading.Barrier(2, timeout=WAIT_S)
    begun: list[int] = []

    def fail(index: int) -> None:
        together.wait()
        raise CheckpointError(f"step {index} failed")

    steps = [partial(fail, 0), partial(fail, 1), *(partial(begun.append, index) for index in range(2, 1000))]
    with pytest.raises(CheckpointError, match="step 0 failed"):
        run_steps(steps, 2)
    assert len(begun) <= 1  # by the other thread, between the two errors
    assert torch.get_num_threads() == 2


def test_an_interrupt_of_a_step_reaches_the_caller() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps([interrupt, lambda: None], 2)
