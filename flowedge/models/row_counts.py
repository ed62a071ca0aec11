"""The numbers of rows of a product for which every row has the same bits."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

PREFILL_ROWS = 128  # most rows of an exact product; a larger forward is computed in parts


@dataclass(frozen=True)
class RowCounts:
    """Numbers of rows, ascending, for which a row's result has the same bits.

    A forward is padded to the next of them, and divided when it has more rows than the largest.
    """

    allowed: tuple[int, ...]

    @property
    def most(self) -> int:
        return self.allowed[-1]

    def padded(self, rows: int) -> int:
        """The number of rows that a product of `rows` rows, at most `most`, is computed with."""
        return self.allowed[bisect_left(self.allowed, rows)]

    def parts(self, rows: int) -> Iterator[tuple[int, int]]:
        """Divide `rows` rows into (start, stop) of at most `most` rows each."""
        for start in range(0, rows, self.most):
            yield start, min(rows, start + self.most)

    def common(self, other: RowCounts) -> RowCounts | None:
        """The numbers of rows in both; None when there are none."""
        shared = tuple(sorted({*self.allowed} & {*other.allowed}))
        return RowCounts(shared) if shared else None

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        """Compute a function of rows [n, in], n of 1 or more, with allowed numbers of rows; [n, out]."""
        rows = len(inputs)
        if rows <= self.most and self.padded(rows) == rows:
            return function(inputs)
        parts = [
            function(pad_rows(inputs[start:stop], self.padded(stop - start)))[: stop - start]
            for start, stop in self.parts(rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class _AnyCount(RowCounts):
    """Every number of rows, without padding and parts."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def most(self) -> int:
        return sys.maxsize

    def padded(self, rows: int) -> int:
        return rows

    def parts(self, rows: int) -> Iterator[tuple[int, int]]:
        yield 0, rows

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return function(inputs)


ANY_COUNT: RowCounts = _AnyCount()


def pad_rows(inputs: torch.Tensor, rows: int) -> torch.Tensor:
    """Repeat the last row of `inputs` [n, ...] until there are `rows` rows."""
    missing = rows - len(inputs)
    if not missing:
        return inputs
    return torch.cat((inputs, inputs[-1:].expand(missing, *inputs.shape[1:])))
