"""Times the jobs of a draft node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.jobs import DraftBatch, DropCache, ExtendDraft, GrowDraft, OpenDraft, Verify
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.host.payloads import to_payload
from flowedge.planning.measuring.layer_timing import RECORDING_RUNS, median_s, pause, synchronize
from flowedge.planning.profile.device import MeasuredDraftTimes
from flowedge.planning.profile.measurement import milliseconds, short

GROWN = (1, 2, 5, 10, 20, 32)  # frontier nodes of a layer
EXTENDED = (1, 2, 4, 8, 16, 32, 64, 128)  # true rows
VERIFIED = (1, 4, 8, 16, 32, 64, 128)
WIDTH = 10  # children of a node, as EAGLE-2 grows them
ACCEPTED = 1  # row below the root that the sampling walk accepts, where there is one

_SESSION = "measure"


def verify_times(executor: HeadExecutor, repeats: int) -> dict[int, float]:
    """Return seconds of verifying a segment, by rows, at temperature 0, with ACCEPTED rows below the root.

    Where rows are exact, only the logits of the rows that the walk may visit are computed.
    """
    return {rows: _verify_s(executor, rows, repeats) for rows in VERIFIED}


def draft_times(executor: HeadExecutor, cached: int, repeats: int) -> MeasuredDraftTimes:
    """Time the drafter's jobs after `cached` true rows.

    Raises:
        BadRequestError: when the drafter is not an EAGLE-1/2 head.
    """
    drafter = executor.drafter
    if not isinstance(drafter, HeadDrafter) or not isinstance(drafter.head, EagleHead):
        raise BadRequestError("only a drafter that is an EAGLE-1/2 head can be measured; give --drafter none")
    executor.run(OpenDraft(_SESSION, cached + max(EXTENDED), 0))
    executor.run(_extend(executor, cached))

    finish, warm_up = _waiting(executor)

    def rewind() -> None:
        drafter.rewind(_SESSION, cached)
        pause()

    def extended_s(rows: int) -> float:
        job = _extend(executor, rows)
        return median_s(
            lambda: executor.run(job),
            repeats,
            prepare=rewind,
            finish=finish,
            warm_up=warm_up,
        )

    extend = {rows: extended_s(rows) for rows in EXTENDED}
    drafter.rewind(_SESSION, cached)
    executor.run(_extend(executor, 1))  # a growth starts at the row that was added last
    growths = count(1)
    root = median_s(
        lambda: executor.run(_grow(next(growths), [0], [-1])), repeats, prepare=pause, warm_up=warm_up
    )

    def grown_s(nodes: int) -> float:
        growth = 0

        def grow_root() -> None:
            nonlocal growth
            growth = next(growths)
            executor.run(_grow(growth, [0], [-1]))
            pause()

        names = list(range(1, nodes + 1))
        return median_s(
            lambda: executor.run(_grow(growth, names, [0] * nodes)),
            repeats,
            prepare=grow_root,
            warm_up=warm_up,
        )

    grow = {nodes: grown_s(nodes) for nodes in GROWN}
    executor.run(DropCache(_SESSION))
    return MeasuredDraftTimes(
        extend_ms=milliseconds(extend), grow_ms=milliseconds(grow), root_ms=short(root * 1e3)
    )


def _verify_s(executor: HeadExecutor, rows: int, repeats: int) -> float:
    hidden = random_rows(executor, rows)
    (own,) = to_device(executor.head.device, hidden)
    (drawn,) = to_host(executor.head.logits(own).argmax(dim=-1))
    tokens = np.zeros(rows, dtype=np.int64)
    tokens[1:] = drawn[:-1]
    if rows > ACCEPTED + 1:  # the walk has to end at a node that was not drawn
        tokens[ACCEPTED + 1] = (tokens[ACCEPTED + 1] + 1) % executor.head.vocab_size
    positions: IntArray = np.arange(rows, dtype=np.int64)
    job = DraftBatch([Verify(_SESSION, SamplingParams(seed=0), hidden, tokens, positions - 1, positions)])
    return median_s(lambda: executor.run(job), repeats, prepare=pause)


def _waiting(executor: HeadExecutor) -> tuple[Callable[[], object], int]:
    """The function that waits for the drafter's device, and the number of runs that do not count."""
    device = executor.head.device
    return synchronize(device), RECORDING_RUNS if device.type == "cuda" else 0


def _extend(executor: HeadExecutor, rows: int) -> DraftBatch:
    tokens = np.arange(rows, dtype=np.int64) % 16
    return DraftBatch([ExtendDraft(_SESSION, random_rows(executor, rows), tokens)])


def _grow(growth: int, nodes: Sequence[int], parents: Sequence[int]) -> DraftBatch:
    names, above = np.array(nodes, dtype=np.int64), np.array(parents, dtype=np.int64)
    return DraftBatch([GrowDraft(_SESSION, growth, names, above, names % 16, WIDTH, None, None)])


def random_rows(executor: HeadExecutor, rows: int) -> Payload:
    """Return hidden states [rows, hidden] in the dtype of the LM head, the same for each number of rows."""
    weight = executor.head.weight
    generator = torch.Generator().manual_seed(rows)
    return to_payload(torch.randn((rows, weight.shape[1]), generator=generator).to(weight.dtype))
