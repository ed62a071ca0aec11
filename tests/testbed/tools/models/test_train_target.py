"""Training of a target that begins with the mean of two."""

from __future__ import annotations

from pathlib import Path

import torch

from testbed.tools.models.train_target import mix_in
from tests.testbed.tools.models.test_loops import tiny_model


def test_the_mean_of_two_targets(tmp_path: Path) -> None:
    first, second = tiny_model(), tiny_model()
    with torch.no_grad():
        for weight in second.parameters():
            weight.add_(1.0)
    second.save_pretrained(tmp_path)
    mix_in(first, tmp_path, 0.25)
    for mixed, start in zip(first.parameters(), tiny_model().parameters(), strict=True):
        torch.testing.assert_close(mixed, start + 0.25)
