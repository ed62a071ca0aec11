"""KV caches in 8 bits: the rounding of each head of each row, the moves, the bytes and the refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.errors import BadRequestError
from flowedge.models.attention.kv_store import Int8Store, PlainStore, check_kv, kv_row_bytes
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.families.parts import KeyHeads
from tests.models.conftest import Make
from tests.models.pipeline import Pipeline

SHAPE = (2, 2, 3, 20, 32)
HEADS = KeyHeads(3, 32)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    sizes = torch.tensor([1e-3, 1.0, 300.0])[:, None, None]  # of the heads
    keys, values = torch.randn((2, 3, count, 32), generator=generator) * sizes
    return keys, values


def read(store: Int8Store | PlainStore, layer: int, start: int, stop: int) -> torch.Tensor:
    return store.read(layer, start, torch.full((2, 3, stop - start, 32), 7.0)).clone()


def test_values_are_rounded_by_the_scale_of_their_own_head_and_row() -> None:
    store = Int8Store(SHAPE, "cpu")
    keys, values = rows(5)
    store.write_both(1, 4, torch.stack((keys, values)))
    for given, stored in zip((keys, values), read(store, 1, 4, 9), strict=True):
        step = given.abs().amax(-1, keepdim=True) / 127
        assert ((given - stored).abs() <= 0.5001 * step).all()
    assert not read(store, 0, 0, 20).any()
    alone = Int8Store(SHAPE, "cpu")
    alone.write_both(1, 6, torch.stack((keys, values))[:, :, 2:3])
    assert torch.equal(read(alone, 1, 6, 7), read(store, 1, 6, 7))


def test_zeros_stay_zeros() -> None:
    store = Int8Store(SHAPE, "cpu")
    store.write_both(0, 0, torch.zeros(2, 3, 2, 32))
    assert torch.equal(read(store, 0, 0, 2), torch.zeros(2, 3, 2, 32))


@pytest.mark.parametrize("store", [Int8Store(SHAPE, "cpu"), PlainStore(SHAPE, torch.bfloat16, "cpu")])
def test_reading_taking_and_moving(store: Int8Store | PlainStore) -> None:
    for layer in range(2):
        keys, values = rows(20)
        store.write_both(layer, 0, torch.stack((keys, values)).to(torch.bfloat16))
    slots = torch.tensor([3, 7, 8, 15])
    expected = [read(store, layer, 0, 20)[:, :, slots] for layer in range(2)]
    assert expected[0].dtype == torch.float32
    assert torch.equal(store.take(1, slots), expected[1])
    store.move(2, slots)
    for layer in range(2):
        assert torch.equal(read(store, layer, 2, 6), expected[layer])


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
def test_beyond_the_capacity_zeros_are_read(dtype: torch.dtype) -> None:
    store = Int8Store(SHAPE, "cpu") if dtype == torch.int8 else PlainStore(SHAPE, dtype, "cpu")
    store.write_both(0, 0, torch.stack(rows(20)))
    last = read(store, 0, 16, 24)
    assert torch.equal(last[:, :, :4], read(store, 0, 0, 20)[:, :, 16:])
    assert not last[:, :, 4:].any()


def test_bytes() -> None:
    assert kv_row_bytes([HEADS], torch.bfloat16, "int8") == 2 * 3 * (32 + 4)
    assert kv_row_bytes([HEADS] * 4, torch.bfloat16, "int8") == 4 * 2 * 3 * 36
    store = Int8Store(SHAPE, "cpu")
    assert store.nbytes == 2 * 20 * kv_row_bytes([HEADS], torch.float32, "int8")


def test_refusals() -> None:
    check_kv([HEADS], torch.bfloat16, "int8", exact=True)
    check_kv([HEADS], torch.bfloat16, "native", exact=False)
    with pytest.raises(BadRequestError, match="read by exact attention alone"):
        check_kv([HEADS], torch.bfloat16, "int8", exact=False)
    with pytest.raises(BadRequestError, match="'fp8' is not one of native, int8"):
        check_kv([HEADS], torch.bfloat16, "fp8", exact=True)
    narrow = KeyHeads(3, 16)
    with pytest.raises(BadRequestError, match=r"62% of the memory of one in bfloat16.*head of 16 values"):
        check_kv([narrow], torch.bfloat16, "int8", exact=True)
    check_kv([narrow], torch.float32, "int8", exact=True)


def test_logits_stay_near_those_of_a_native_cache(make_checkpoint: Make) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=32))
    tokens = np.random.default_rng(5).integers(0, 97, 150).tolist()
    native = Pipeline(checkpoint, 2, exact=True).commit(tokens)
    rounded = Pipeline(checkpoint, 2, exact=True, kv="int8").commit(tokens)
    assert not torch.equal(native, rounded)
    error = (native - rounded).norm() / native.norm()
    assert error < 0.05, f"relative error {error}"


def test_a_session_takes_about_half_the_memory(directory: Path, make_checkpoint: Make) -> None:
    checkpoint = Checkpoint(make_checkpoint(head_dim=64))
    caches = [
        LayerBlock.load(checkpoint, 0, 2, dtype=torch.bfloat16, exact=True, kv=kv).new_cache(100)
        for kv in ("native", "int8")
    ]
    assert caches[1].nbytes / caches[0].nbytes == (64 + 4) / 128
