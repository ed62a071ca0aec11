"""The judgement whether two tokens are a tie under rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import BoolArray, FloatArray
from flowedge.core.gumbel_noise import gumbel_noise
from flowedge.core.sampling import SamplingParams


@dataclass(frozen=True)
class Tolerance:
    """The effect of rounding alone on a model's logits, measured on some text."""

    max_logit_difference: float  # between forwards of 1 row and of many rows
    tokens: int  # the number of positions compared

    @property
    def value(self) -> float:
        """The tolerance to judge with: the logits of two tokens can differ in opposite directions."""
        return 2 * self.max_logit_difference


@dataclass(frozen=True)
class Difference:
    """A position where the reference draws another token than we did."""

    position: int  # in the whole sequence, prompt included
    ours: int
    reference: int
    gap: float  # see `gap_behind`


@dataclass(frozen=True)
class Judgement:
    """The result of checking an answer against the reference."""

    checked: int  # the number of tokens compared
    tolerance: float  # in logit units
    ties: tuple[Difference, ...]
    failure: Difference | None

    @property
    def passed(self) -> bool:
        """Whether every token equals the reference's token or is a tie with it."""
        return self.failure is None

    @property
    def max_gap(self) -> float:
        """The largest gap of all differences, the failure included; 0 without differences."""
        found = [*self.ties, *([self.failure] if self.failure else [])]
        return max((difference.gap for difference in found), default=0.0)


def gap_behind(
    logits: FloatArray,
    ours: int,
    reference: int,
    *,
    position: int,
    sampling: SamplingParams,
    tolerance: float,
) -> float:
    """The score that the token `ours` lacks to be drawn by the reference, in logit units.

    A score is the perturbed log-probability times the temperature. A token that rounding may put inside or
    outside of top-k and top-p counts as whichever favours ours; a token that cannot be inside gives inf.

    Args:
        logits: the reference's logits before temperature, float64 [vocab].
        tolerance: the largest difference that rounding explains, in logit units.
    """
    if sampling.temperature == 0:
        return float(logits[reference] - logits[ours])
    possible, certain = _filtered(logits, sampling, tolerance)
    if not possible[ours]:
        return math.inf
    perturbed = logits + sampling.temperature * gumbel_noise(sampling.seed, position, logits.size)
    rivals = perturbed[certain] if certain.any() else perturbed[reference : reference + 1]
    return max(0.0, float(rivals.max() - perturbed[ours]))


def _filtered(logits: FloatArray, sampling: SamplingParams, tolerance: float) -> tuple[BoolArray, BoolArray]:
    """The tokens that may pass top-k and top-p if logits differ by up to `tolerance`, and those that must."""
    descending = -np.sort(-logits)
    above_for_sure = np.searchsorted(-descending, -(logits + tolerance), side="left")
    # The search counts the token itself, too.
    above_perhaps = np.searchsorted(-descending, -(logits - tolerance), side="right") - 1
    possible = np.ones(logits.size, dtype=np.bool_)
    certain = np.ones(logits.size, dtype=np.bool_)
    kept = sampling.top_k or logits.size
    possible &= above_for_sure < kept
    certain &= above_perhaps < kept
    if sampling.top_p < 1:
        weights = np.exp((descending - descending[0]) / sampling.temperature)
        weights[kept:] = 0
        total = weights.sum()
        mass = np.concatenate(([0.0], np.cumsum(weights))) / total
        own = np.exp((logits - descending[0]) / sampling.temperature) / total
        stretch = math.exp(min(tolerance / sampling.temperature, 50.0))
        possible &= mass[above_for_sure] / stretch < sampling.top_p
        certain &= (mass[above_perhaps + 1] - own) * stretch < sampling.top_p
        # The largest logit passes any top_p.
        certain |= above_perhaps == 0
    return possible, certain
