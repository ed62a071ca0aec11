"""Parts of stored tensors: some rows of it, and values that are stored otherwise."""

from __future__ import annotations

import pytest
import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.families.parts import DeltaNet
from flowedge.models.files.stored_tensors import StoredTensor, delta_parts

NET = DeltaNet(key_heads=2, value_heads=4, key_size=1, value_size=3, inputs=4, layers=(True,))
NAME = "model.layers.0.linear_attn.in_proj_{}.weight"
ROWS = torch.arange(28.0)[:, None]  # of each key head: its query, its key, 6 values, 6 gates


@pytest.mark.parametrize("rows", [None, slice(0, 3), slice(1, 9), slice(5, 5), slice(15, 99)])
def test_projections_by_key_head(rows: slice | None) -> None:
    parts = delta_parts(NAME.format("qkvz"), "stored", (28, 1), NET)
    whole = {"qkv": [0, 14, 1, 15, *range(2, 8), *range(16, 22)], "z": [*range(8, 14), *range(22, 28)]}
    assert {*parts} == {NAME.format(part) for part in whole}
    for part, wanted in whole.items():
        place = parts[NAME.format(part)]
        assert place.shape((28, 1)) == (len(wanted), 1)
        own = wanted[rows or slice(None)]
        if own:
            assert place.take(ROWS, rows).flatten().tolist() == own
        assert not place.is_whole


def test_rates_and_decays_by_key_head() -> None:
    parts = delta_parts(NAME.format("ba"), "stored", (8, 1), NET)
    found = {name: place.take(ROWS[:8]).flatten().tolist() for name, place in parts.items()}
    assert found == {NAME.format("b"): [0, 1, 4, 5], NAME.format("a"): [2, 3, 6, 7]}


@pytest.mark.parametrize("shape", [(27, 1), (56, 1), (28,), (28, 1, 1)])
def test_a_tensor_with_other_rows_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        CheckpointError, match=r"tensor stored has shape .*, the config asks for 14 rows for each of 2"
    ):
        delta_parts(NAME.format("qkvz"), "stored", shape, NET)


def test_an_axis_that_was_left_out_comes_back() -> None:
    values = torch.arange(6.0).view(3, 2)
    assert StoredTensor("x", axis=1).shape((3, 2)) == (3, 1, 2)
    assert torch.equal(StoredTensor("x", axis=1).take(values, slice(1, 3)), values[1:, None])
    assert torch.equal(StoredTensor("x", axis=0).take(values[0]), values[:1])


def test_logarithms_come_back() -> None:
    stored = StoredTensor("x", log_negated=True)
    assert torch.allclose(stored.take(-torch.arange(3.0).exp(), slice(1, 3)), torch.tensor([1.0, 2.0]))
    assert stored.encoding
