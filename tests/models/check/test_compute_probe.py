"""The trial of a compute device."""

from __future__ import annotations

import torch

from flowedge.device.compute import NOT_TRIED
from flowedge.models.check.compute_probe import trials_here
from flowedge.models.quant.quantize import QUANTISATIONS


def test_each_quantisation_is_tried_after_the_device_itself() -> None:
    with torch.inference_mode():
        trials = list(trials_here("cpu"))
    untried = [sum(problem == NOT_TRIED for problem in trial.quant_problems.values()) for trial in trials]
    assert untried == list(range(len(QUANTISATIONS) - 1, -1, -1))
    assert {*trials[0].quant_problems} == {*QUANTISATIONS[1:]}
    assert all(trial.device == "cpu" and not trial.problem for trial in trials)
    assert not trials[-1].quant_problems
