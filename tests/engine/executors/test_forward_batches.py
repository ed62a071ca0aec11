"""A batch of forwards has the results that its forwards have alone, whatever becomes of one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, FlowEdgeError, ProtocolError
from flowedge.core.messages import CONTEXT
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import Forward, ForwardBatch, OpenCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.session_rows import SessionRows
from tests.support.seams import caches_of
from tests.support.session_jobs import run_alone

CAPACITY = 40
ROWS = (9, 1, 20, 4)  # of the sessions' first forwards
BAD = 1  # the session that fails


@pytest.fixture(scope="module")
def block() -> LayerBlock:
    return LayerBlock.load(Checkpoint.open("bundled"), 3, 5)


def opened(block: LayerBlock) -> BlockExecutor:
    executor = BlockExecutor(block)
    for index in range(len(ROWS)):
        executor.run(OpenCache(f"s{index}", CAPACITY))
    return executor


def forward(width: int, index: int, start: int, rows: int) -> Forward:
    payload = np.random.default_rng((index, start)).standard_normal((rows, width))
    positions = np.arange(start, start + rows)
    parents = np.concatenate(([CONTEXT], positions[:-1]))
    none = np.zeros(0, dtype=np.int64)
    return Forward(f"s{index}", start, none, start, start, parents, positions, payload.astype(np.float32))


def first(block: LayerBlock) -> list[Forward]:
    return [forward(block.hidden_size, index, 0, rows) for index, rows in enumerate(ROWS)]


def second(block: LayerBlock) -> list[Forward]:
    return [forward(block.hidden_size, index, rows, 3) for index, rows in enumerate(ROWS)]


def run_together(executor: BlockExecutor, forwards: list[Forward]) -> list[Any]:
    results = executor.run(ForwardBatch(tuple(forwards)))
    assert isinstance(results, list)
    return results


def check_others(results: list[Any], alone: BlockExecutor, forwards: list[Forward]) -> None:
    """Compare the results of all sessions but BAD with those alone."""
    for index, (result, each) in enumerate(zip(results, forwards, strict=True)):
        if index != BAD:
            np.testing.assert_allclose(result, run_alone(alone, each), atol=1e-4)


def unknown_session(forwards: list[Forward]) -> None:
    forwards[BAD] = replace(forwards[BAD], session="nobody")


def beyond_the_cache(forwards: list[Forward]) -> None:
    width = forwards[BAD].payload.shape[1]
    forwards[BAD] = forward(width, BAD, forwards[BAD].cached, CAPACITY + 1)


def wrong_parents(forwards: list[Forward]) -> None:
    forwards[BAD] = replace(forwards[BAD], tail_parents=forwards[BAD].tail_parents + 5)


def wrong_width(forwards: list[Forward]) -> None:
    forwards[BAD] = replace(forwards[BAD], payload=forwards[BAD].payload[:, :-1])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (unknown_session, ProtocolError),
        (beyond_the_cache, CapacityError),
        (wrong_parents, ProtocolError),
        (wrong_width, ProtocolError),
    ],
)
def test_a_forward_that_contradicts_its_session_is_the_only_one_that_fails(
    block: LayerBlock, changes: Any, error: type[FlowEdgeError]
) -> None:
    together, alone = opened(block), opened(block)
    for forwards in (first(block), second(block)):
        good = list(forwards)
        changes(forwards)
        results = run_together(together, forwards)
        assert isinstance(results[BAD], error)
        check_others(results, alone, good)
        run_alone(alone, good[BAD])


def test_rows_that_are_no_numbers_stay_in_their_session(block: LayerBlock) -> None:
    together, alone = opened(block), opened(block)
    forwards = first(block)
    damaged = forwards[BAD].payload.copy()
    damaged[0, 3] = np.nan
    forwards[BAD] = replace(forwards[BAD], payload=damaged)
    results = run_together(together, forwards)
    assert not np.isfinite(results[BAD]).all()
    check_others(results, alone, forwards)
    later = second(block)
    results = run_together(together, later)
    assert not np.isfinite(results[BAD]).all(), "its cache holds rows that are no numbers"
    check_others(results, alone, later)


@pytest.mark.parametrize("lacking", [False, True], ids=["for-all-at-once", "for-one-alone"])
def test_without_memory_for_a_batch_each_forward_is_computed_alone(
    block: LayerBlock, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, alone = opened(block), opened(block)
    run_together(together, first(block))
    for each in first(block):
        run_alone(alone, each)
    bad, forward_together = caches_of(together)[f"s{BAD}"], block.forward_together

    def fail(parts: list[SessionRows], *rest: Any) -> Any:
        if len(parts) > 1 or (lacking and parts[0].cache is bad):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward_together(parts, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(block, "forward_together", fail)
        results = run_together(together, second(block))
    check_others(results, alone, second(block))
    wanted = run_alone(alone, second(block)[BAD])
    if lacking:
        assert isinstance(results[BAD], CapacityError)
        assert f"s{BAD}" not in caches_of(together), "the cache of a session that ends is free at once"
        assert len(caches_of(together)) == len(ROWS) - 1
    else:
        np.testing.assert_allclose(results[BAD], wanted, atol=1e-4)
