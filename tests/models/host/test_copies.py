"""Arrays that share a copy come out as they went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.models.host import copies
from flowedge.models.host.copies import moved, to_device, to_host

ARRAYS = [
    np.arange(7, dtype=np.int64),
    np.array([[True, False, True]]),
    np.zeros((0, 4), dtype=np.float32),
    np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:3],
    np.array(3, dtype=np.int64),
    np.arange(5, dtype=np.float16),
    np.arange(-3, 3, dtype=np.int32),
]
TENSORS = [
    torch.arange(5),
    torch.randn(3, 7)[:, ::2],
    torch.tensor([True, False, True]),
    torch.randn(2, 3).bfloat16(),
    torch.zeros(0, 2, dtype=torch.int32),
    torch.tensor(2.5, dtype=torch.float64),
]


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have copies to and from a GPU stay on the CPU; everything around them is as it is."""
    monkeypatch.setattr(copies, "_upload", lambda staged, device: torch.from_numpy(staged.copy()))


def test_what_goes_to_a_device_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    for device in ("cpu", "cuda:0"):
        for tensor, array in zip(to_device(device, *ARRAYS), ARRAYS, strict=True):
            assert tuple(tensor.shape) == array.shape
            assert np.array_equal(tensor.numpy(), array) and tensor.numpy().dtype == array.dtype


def test_bits_of_bfloat16_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    rows = torch.randn(3, 4).bfloat16()
    (bits,) = to_host(rows)
    assert bits.dtype == np.uint16
    for device in ("cpu", "cuda:0"):
        back, _ = to_device(device, bits, np.arange(2))
        assert back.dtype == torch.bfloat16 and torch.equal(back, rows)


def test_what_comes_to_the_host_together() -> None:
    bits = [copies.plain_bits(tensor) for tensor in TENSORS]
    packed = torch.cat([copies.padded_bytes(each) for each in bits]).numpy()
    for array, expected in zip(copies.arrays_in(packed, bits), to_host(*TENSORS), strict=True):
        assert array.shape == expected.shape and array.dtype == expected.dtype
        assert np.array_equal(array, expected)


def test_arrays_that_are_read_only_and_tensors_that_are_there() -> None:
    array = np.arange(3)
    array.setflags(write=False)
    (tensor,) = to_device("cpu", array)
    tensor += 1
    assert array.tolist() == [0, 1, 2]
    assert moved(tensor, torch.device("cpu")) is tensor
