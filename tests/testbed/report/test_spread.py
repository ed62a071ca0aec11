"""Intervals over prompts: paired, the same each time, as wide as theory has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.figures.spread import (
    drawn_speeds,
    prompts_needed,
    ratio_half_width,
    speed_half_width,
    speedup_half_width,
)


def entry(method: str, seconds: list[float], dataset: str = "own", **changes: Any) -> Entry:
    content: dict[str, Any] = {
        "profile": "boards",
        "point": {},
        "temperature": 0,
        "method": method,
        "noise": "plain",
        "dataset": dataset,
        "by_prompt": {"tokens": [20.0] * len(seconds), "seconds": seconds},
    }
    return {**content, **changes}


SPENT = list(np.random.default_rng(1).normal(10.0, 1.0, 400))


def test_an_interval_is_as_wide_as_the_standard_error_says() -> None:
    width = speed_half_width([entry("auto", SPENT)])
    error = (
        np.std(SPENT) / np.sqrt(len(SPENT)) / np.mean(SPENT)
    )  # as a share, of the seconds and so of the speed
    assert width == pytest.approx(1.96 * error * 2.0, rel=0.08)


def test_datasets_are_drawn_apart() -> None:
    """Of a mean over two datasets of the same spread the interval is narrower by the root of two."""
    one = speed_half_width([entry("auto", SPENT)])
    both = speed_half_width([entry("auto", SPENT, "own"), entry("auto", SPENT, "other")])
    assert one is not None
    assert both == pytest.approx(one / np.sqrt(2), rel=0.08)


def test_what_is_hard_for_both_methods_cancels_out() -> None:
    auto, naive = entry("auto", SPENT), entry("naive_pp", [2 * each for each in SPENT])
    assert ratio_half_width([auto], [naive]) == pytest.approx(0, abs=1e-9)
    assert speedup_half_width([auto], [auto, naive], "naive_pp") == pytest.approx(0, abs=1e-9)
    assert speedup_half_width([auto], [auto], "naive_pp") is None, "the baseline was not run"
    elsewhere = {**naive, "temperature": 1}
    assert speedup_half_width([auto], [auto, elsewhere], "naive_pp") is None


def test_the_same_results_have_the_same_interval() -> None:
    first, second = (
        drawn_speeds("own", {"tokens": [3.0, 5.0, 9.0], "seconds": [1.0, 1.0, 2.0]}) for _ in "ab"
    )
    assert first is not None
    assert second is not None
    assert first.tolist() == second.tolist()


def test_without_a_second_prompt_there_is_no_interval() -> None:
    assert speed_half_width([entry("auto", [10.0])]) is None
    assert speed_half_width([entry("auto", [0.0, 0.0])]) is None, "answers of one token take no time"
    assert ratio_half_width([entry("auto", SPENT)], [entry("naive_pp", [1.0])]) is None


@pytest.mark.parametrize(
    ("share", "prompts", "needed"), [(0.05, 10, 28), (0.03, 10, 10), (0.0, 10, 2), (0.3, 3, 300)]
)
def test_the_prompts_that_a_difference_takes(share: float, prompts: int, needed: int) -> None:
    assert prompts_needed(share, prompts) == needed
