"""Detection of outputs that loop, which would flatter any drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def is_looping(tokens: Sequence[int], window: int = 16, times: int = 3) -> bool:
    """Whether any run of `window` tokens occurs at least `times` times."""
    runs = Counter(tuple(tokens[start : start + window]) for start in range(len(tokens) - window + 1))
    return any(count >= times for count in runs.values())
