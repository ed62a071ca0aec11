"""When two tokens count as a tie under rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import BoolArray, FloatArray
from flowedge.core.sampling import SamplingParams, gumbel_noise


@dataclass(frozen=True)
class Tolerance:
    """How far rounding alone moves this model's logits, measured on some text."""

    max_logit_difference: float  # 1-row against many-row forwards
    tokens: int  # positions compared

    @property
    def value(self) -> float:
        """The tolerance to judge with: both tokens' logits can be off, in opposite directions."""
        return 2 * self.max_logit_difference


@dataclass(frozen=True)
class Difference:
    """A position where the reference alone draws another token than we did."""

    position: int  # in the whole sequence, prompt included
    ours: int
    reference: int
    gap: float  # how far ours is behind in the reference's perturbed logits; inf: outside top-k or top-p


@dataclass(frozen=True)
class Judgement:
    """What checking an answer against the reference found."""

    checked: int  # tokens compared
    tolerance: float  # logit units
    ties: tuple[Difference, ...]
    failure: Difference | None

    @property
    def passed(self) -> bool:
        """Whether every token was the reference's or a tie with it."""
        return self.failure is None

    @property
    def max_gap(self) -> float:
        """The largest gap met, failure included; 0 when every token was equal."""
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
    """How far `ours` is behind what the reference draws, in logit units.

    logits: the reference's, float64 [vocab], before temperature; the gap is that of the perturbed
    log-probabilities times the temperature. Truncation is judged with the same tolerance: a token that
    rounding may put inside or outside top-k and top-p counts as either, whichever favours ours. A token
    that cannot be inside gives inf.
    """
    if sampling.temperature == 0:
        return float(logits[reference] - logits[ours])
    possible, certain = _kept(logits, sampling, tolerance)
    if not possible[ours]:
        return math.inf
    perturbed = logits + sampling.temperature * gumbel_noise(sampling.seed, position, logits.size)
    rivals = perturbed[certain] if certain.any() else perturbed[reference : reference + 1]
    return max(0.0, float(rivals.max() - perturbed[ours]))


def _kept(logits: FloatArray, sampling: SamplingParams, tolerance: float) -> tuple[BoolArray, BoolArray]:
    """Which tokens top-k and top-p may keep, and which they must, if logits differ by up to the tolerance."""
    descending = -np.sort(-logits)
    above_for_sure = np.searchsorted(-descending, -(logits + tolerance), side="left")
    above_perhaps = np.searchsorted(-descending, -(logits - tolerance), side="right") - 1  # without itself
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
        # The largest logit is kept whatever top_p says.
        certain |= above_perhaps == 0
    return possible, certain
