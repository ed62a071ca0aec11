"""The recipe against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowedge.training.heads.eagle_training import NOISE, head_losses, with_noise
from flowedge.training.trainer import default_learning_rate, learning_rate_scale


def test_losses_by_hand() -> None:
    predicted = torch.tensor([[0.0, 3.0], [1.0, 1.0]])
    wanted = torch.tensor([[0.5, 1.0], [1.0, 1.0]])
    # The target says 3/4 and 1/4, the head says 1/2 and 1/2; in the second row both say 1/2 and 1/2.
    wanted_logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    losses = head_losses(predicted, wanted, torch.zeros(2, 2), wanted_logits)
    assert losses.feature.item() == pytest.approx((0.5 * 0.5**2 + (2.0 - 0.5)) / 4)
    assert losses.token.item() == pytest.approx(math.log(2.0))
    assert losses.total(0.1).item() == pytest.approx(1.625 / 4 + 0.1 * math.log(2.0))


def test_cross_entropy_is_of_the_targets_distribution() -> None:
    logits = torch.tensor([[math.log(4.0), 0.0]])  # 4/5 and 1/5
    wanted_logits = torch.tensor([[0.0, math.log(3.0)]])  # 1/4 and 3/4
    losses = head_losses(torch.zeros(1, 2), torch.zeros(1, 2), logits, wanted_logits)
    assert losses.token.item() == pytest.approx(-0.25 * math.log(0.8) - 0.75 * math.log(0.2))


def test_noise_is_uniform_and_keyed_by_its_generator() -> None:
    features, scale = torch.zeros(100, 100), torch.tensor(2.0)
    noise = with_noise(features, scale, torch.Generator().manual_seed(3))
    assert torch.equal(noise, with_noise(features, scale, torch.Generator().manual_seed(3)))
    assert noise.abs().max().item() <= 2 * NOISE
    assert noise.std().item() == pytest.approx(2 * NOISE / math.sqrt(3), rel=0.02)


def test_learning_rate_rises_and_falls() -> None:
    assert learning_rate_scale(0.01) == pytest.approx(0.5)
    assert learning_rate_scale(0.02) == 1
    assert learning_rate_scale(0.51) == pytest.approx(0.5)
    assert 0 < learning_rate_scale(0.0) < 0.1
    assert 0 < learning_rate_scale(1.0) < 0.1
    assert default_learning_rate(64) == default_learning_rate(256) == 1e-3
    assert default_learning_rate(16384) == 3e-5
