"""How far figures may be off by chance: a paired bootstrap over the prompts.

The prompts of a dataset are drawn anew, with replacement, as often as there are prompts. Every method gets
the same draws, so prompts that are easy or hard for all of them cancel out of a ratio. The draws follow from
the dataset's name and its number of prompts, so the same results always have the same intervals.

Where a dataset has one prompt, leads have an interval over chunks of its answer. It leaves out how prompts
differ.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowedge.core.arrays import FloatArray
from flowedge_testbed.report.entries import Entry

DRAWS = 2000
LEVEL = 0.95  # of the draws lie within the interval
DIFFERENCE = 0.03  # between two methods that should be told from chance
_SEED = 20


@cache
def _counts(dataset: str, prompts: int) -> FloatArray:
    """Return how often each prompt is in each draw, [draws, prompts]."""
    generator = np.random.default_rng([_SEED, zlib.crc32(dataset.encode()), prompts])
    return generator.multinomial(prompts, np.full(prompts, 1 / prompts), size=DRAWS).astype(np.float64)


def drawn_speeds(dataset: str, by_prompt: Mapping[str, Sequence[float]]) -> FloatArray | None:
    """Return tokens/s of each draw [draws]; None for fewer than two prompts, and where a draw has no time.

    by_prompt: tokens after the first of each prompt, and the seconds that they took.
    """
    tokens, seconds = (np.array(by_prompt[name], dtype=np.float64) for name in ("tokens", "seconds"))
    if len(tokens) < 2:
        return None
    counts = _counts(dataset, len(tokens))
    spent = counts @ seconds
    return counts @ tokens / spent if spent.min() > 0 else None


def half_width(drawn: FloatArray) -> float:
    """Return half of the width of the interval that holds LEVEL of the drawn figures."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(high - low) / 2


def _mean_speeds(entries: Sequence[Entry], *, chunks: bool = False) -> FloatArray | None:
    """Return the mean over entries of tokens/s, for each draw.

    chunks: whether chunks of the answers are drawn where a dataset has one prompt.
    """
    drawn = [
        drawn_speeds(entry["dataset"], entry["by_chunk" if chunks and "by_chunk" in entry else "by_prompt"])
        for entry in entries
    ]
    known = [speeds for speeds in drawn if speeds is not None]
    return np.mean(known, axis=0) if known and len(known) == len(drawn) else None


def speed_half_width(entries: Sequence[Entry]) -> float | None:
    """Return the half width of the mean of tokens/s over entries of one method; None if it is not known."""
    drawn = _mean_speeds(entries)
    return None if drawn is None else half_width(drawn)


def ratio_half_width(own: Sequence[Entry], others: Sequence[Entry], *, chunks: bool = False) -> float | None:
    """Return the half width of the ratio of two methods' mean tokens/s on the same prompts.

    chunks: whether chunks of the answers are drawn where a dataset has one prompt, and so no interval.
    """
    mine, theirs = _mean_speeds(own, chunks=chunks), _mean_speeds(others, chunks=chunks)
    return None if mine is None or theirs is None else half_width(mine / theirs)


def speedup_half_width(own: Sequence[Entry], among: Sequence[Entry], baseline: str) -> float | None:
    """Return the half width of the mean of `speedup_vs_` a baseline over entries of one method.

    among: entries with those of the baseline.
    """
    plain = {_asked(e): e for e in among if (e["method"], e["noise"]) == (baseline, "plain")}
    ratios = []
    for entry in own:
        other = plain.get(_asked(entry))
        drawn = None if other is None else (_mean_speeds([entry]), _mean_speeds([other]))
        if drawn is None or drawn[0] is None or drawn[1] is None:
            return None
        ratios.append(drawn[0] / drawn[1])
    return half_width(np.mean(ratios, axis=0)) if ratios else None


def _asked(entry: Entry) -> tuple[Any, ...]:
    return entry["profile"], tuple(entry["point"].items()), entry["dataset"], entry["temperature"]


def prompts_needed(share: float, prompts: int, difference: float = DIFFERENCE) -> int:
    """Return how many prompts of a dataset tell a difference from chance, if `prompts` leave a half width.

    The half width falls with the square root of the number: 5 % of 10 prompts are 3 % of 28.

    Args:
        share: the half width of a ratio, over the ratio.
        difference: to be told from chance, as a share.
    """
    return max(math.ceil(prompts * (share / difference) ** 2), 2)
