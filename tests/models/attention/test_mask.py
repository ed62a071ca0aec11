"""The mask buffer against plain numpy, after any history."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flowedge.models.attention.masked import AttentionMask, MaskRows, write_masks


def write(mask: AttentionMask, *rows: Any) -> torch.Tensor:
    [view] = write_masks([mask], [MaskRows(*rows)])
    return view


def test_the_mask_buffer_is_reused_and_right_after_any_history() -> None:
    rng = np.random.default_rng(3)
    mask = AttentionMask(300, torch.float32, "cpu")
    context, pointers = 0, set()
    for step in range(120):
        context = min(context + int(rng.integers(0, 4)), 250)
        tail = int(rng.integers(1, 40))
        rows = int(rng.integers(1, tail + 1)) if step != 60 else tail
        seen = rng.random((rows, tail)) < 0.5
        view = write(mask, context, seen)
        assert view.shape == (1, 1, rows, context + tail)
        assert (view[0, 0, :, :context] == 0).all()
        expected = np.where(seen, np.float32(0), np.float32(torch.finfo(torch.float32).min))
        np.testing.assert_array_equal(view[0, 0, :, context:].numpy(), expected)
        pointers.add(view.data_ptr())
    assert len(pointers) <= 4  # it grows with the largest segment, then stays


def test_a_window_hides_the_context_before_it_after_any_history() -> None:
    rng = np.random.default_rng(4)
    mask = AttentionMask(300, torch.float32, "cpu")
    fill = np.float32(torch.finfo(torch.float32).min)
    context = 0
    for _ in range(200):
        context = min(context + int(rng.integers(0, 5)), 250)
        tail = int(rng.integers(1, 40))
        rows = int(rng.integers(1, tail + 1))
        seen = rng.random((rows, tail)) < 0.5
        first_seen = context + rng.integers(-60, 10, rows)
        view = write(mask, context, seen, first_seen)[0, 0].numpy()
        low = context + tail - view.shape[1]
        assert max(0, first_seen.min() - 16) < low + 1 <= max(0, first_seen.min()) + 1
        expected = np.where(np.arange(low, context) >= first_seen[:, None], np.float32(0), fill)
        np.testing.assert_array_equal(view[:, : context - low], expected)
        np.testing.assert_array_equal(view[:, context - low :], np.where(seen, np.float32(0), fill))


def test_only_the_columns_that_can_have_changed_are_written() -> None:
    mask = AttentionMask(100, torch.float32, "cpu")
    assert write(mask, 50, np.ones((2, 4), dtype=np.bool_)).stride(2) % 16 == 0
    view = write(mask, 50, np.ones((2, 4), dtype=np.bool_))
    view[..., :50] = 7.0  # would be overwritten if the context were masked again
    view = write(mask, 52, np.ones((2, 4), dtype=np.bool_))
    assert (view[..., :50] == 7.0).all()
    assert (view[..., 50:] == 0.0).all()
