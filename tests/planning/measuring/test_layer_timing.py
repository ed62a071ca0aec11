"""A layer's time is taken apart into the forward's fixed time, attention and the rest."""

from __future__ import annotations

import pytest

from flowedge.planning.measuring.layer_timing import attention_ms, forward_seconds, without_forward


def per_layer(layers: int, fixed: float, layer: dict[int, float]) -> dict[int, float]:
    """The times of a block of layers over their number."""
    return {rows: (fixed + layers * seconds) / layers for rows, seconds in layer.items()}


def test_the_fixed_time_is_what_does_not_grow_with_the_layers() -> None:
    layer = {1: 0.001, 2: 0.002, 16: 0.02}
    several, single = per_layer(4, 0.003, layer), per_layer(1, 0.003, {1: 0.001, 2: 0.002})
    forward = forward_seconds(several, single, 4)
    assert forward == pytest.approx(0.003)
    assert without_forward(several, forward, 4) == pytest.approx(layer)


@pytest.mark.parametrize(("single", "expected"), [(0.0005, 0.0), (1.0, 0.9 * 4 * 0.001)])
def test_scattered_timings_give_neither_negative_times_nor_layers_of_no_time(
    single: float, expected: float
) -> None:
    assert forward_seconds({1: 0.001, 2: 0.004}, {1: single}, 4) == pytest.approx(expected)


def test_faster_timings_than_the_fixed_time_was_found_from_keep_a_tenth() -> None:
    assert without_forward({1: 0.001, 2: 0.004}, 0.008, 4) == pytest.approx({1: 0.0001, 2: 0.002})


def test_a_block_of_one_layer_has_no_fixed_time() -> None:
    assert forward_seconds({1: 0.001}, {}, 1) == 0


def test_attention_is_what_the_context_adds() -> None:
    far, near = {1: 0.003, 16: 0.02}, {1: 0.001, 16: 0.021}
    assert attention_ms(far, near, 256) == {1: 2.0, 16: 0.0}
    assert attention_ms(far, near, 0) == {}
