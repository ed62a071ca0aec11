"""Aligned activations give an element the same bits wherever it is, with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flowedge.models.exact.aligned_activation import AlignedActivation, align_activations


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [nn.SiLU, nn.GELU])
def test_rows_do_not_depend_on_their_place(threads: int, kind: type[nn.Module]) -> None:
    for width in (24, 64, 1000, 11008):
        activation = AlignedActivation(kind())
        rows = torch.randn((1, 40, width), generator=torch.Generator().manual_seed(1))
        expected = activation(rows)
        torch.testing.assert_close(expected, kind()(rows))
        for first, stop in [(0, 1), (3, 8), (5, 21), (39, 40)]:
            assert torch.equal(activation(rows[:, first:stop].clone()), expected[:, first:stop])


def test_all_activations_of_a_layer_are_replaced_once() -> None:
    layer = nn.Module()
    layer.mlp = nn.Sequential(nn.Linear(4, 4), nn.SiLU())
    align_activations(layer)
    align_activations(layer)
    replaced = layer.mlp[1]
    assert isinstance(replaced, AlignedActivation) and isinstance(replaced.activation, nn.SiLU)
    assert isinstance(layer.mlp[0], nn.Linear)
