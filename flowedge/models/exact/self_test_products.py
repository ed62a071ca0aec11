"""The self-test of products: the numbers of rows with which each row of a linear layer has the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import nn

from flowedge.models.row_counts import PREFILL_ROWS, RowCounts

_TESTED = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32, 33, 48, 64, PREFILL_ROWS)
_LEAST_USEFUL = 16  # with fewer rows in a product, speculation would gain nothing
# Products of up to 3 rows of floats are vector products on CPUs. Rounding to 16 bits hides most of their
# differences, so that a test could miss them.
_LEAST_OF_FLOATS = 4
# Another order of summation shows in about one of 2^15 results that are rounded to 16 bits. So for each
# number of rows about 2^19 results are compared, as far as the number of multiplications allows.
_RESULTS = 1 << 19
_MULTIPLICATIONS = 1 << 28
_MOST_ROWS = 2048

Function = Callable[[torch.Tensor], torch.Tensor]  # of rows [n, in]


def product_counts(
    modules: Iterable[nn.Module], dtype: torch.dtype, device: torch.device, most: int = PREFILL_ROWS
) -> RowCounts | None:
    """Find the numbers of rows for which all linear layers give a row the same bits; None when none do.

    Layers of the same kind and sizes are tested once in the process.

    Args:
        modules: modules with `in_features` and `out_features`; other modules are ignored.
        most: largest number of rows to test.
    """
    counts: RowCounts | None = RowCounts(tuple(range(1, most + 1)))
    for module in modules:
        if hasattr(module, "in_features") and hasattr(module, "out_features") and counts is not None:
            found = _Linear(module, dtype, device, most).counts
            counts = None if found is None else counts.common(found)
    if counts is None or counts.most < min(_LEAST_USEFUL, most):
        return None
    return counts


def function_counts(
    function: Function, inputs: torch.Tensor, tested: Sequence[int], most_rows: int
) -> RowCounts | None:
    """Find the numbers of rows for which a function gives a row of `inputs` [n, in] the same bits.

    Of several sets of numbers that agree among themselves, the largest set is returned.

    Args:
        most_rows: rows of the inputs that are computed with each number of rows; at least one product.
    """
    sets: list[tuple[torch.Tensor, list[int]]] = []  # of numbers that agree, with the output of the largest
    for count in sorted(tested, reverse=True):
        rows = max(count, min(len(inputs), most_rows) // count * count)
        output = torch.cat([function(part) for part in torch.split(inputs[:rows], count)])
        if count > 1 and not _independent_of_position(function, inputs[:count], output[:count]):
            continue
        for largest, members in sets:
            common = min(rows, len(largest))
            if torch.equal(output[:common], largest[:common]):
                members.append(count)
                break
        else:
            sets.append((output, [count]))
    if not sets:
        return None
    _, members = max(sets, key=lambda agreeing: len(agreeing[1]))
    return RowCounts(tuple(sorted(members)))


def _independent_of_position(function: Function, inputs: torch.Tensor, output: torch.Tensor) -> bool:
    shift = len(inputs) // 2
    return torch.equal(function(inputs.roll(shift, 0)).roll(-shift, 0), output)


class _Linear:
    """A linear layer, which equals other layers of the same kind and sizes on the same device."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device, most: int) -> None:
        self._module = module
        self._dtype = dtype
        self._device = device
        self._most = most
        self._in_features = int(cast(int, module.in_features))
        self._out_features = int(cast(int, module.out_features))
        self._key = (
            type(module),
            self._in_features,
            self._out_features,
            module.bias is None,
            dtype,
            device,
            most,
            torch.get_num_threads(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Linear) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def counts(self) -> RowCounts | None:
        return _counts_of(self)

    @torch.inference_mode()
    def tested(self) -> RowCounts | None:
        module, cpu = self._module, self._device.type == "cpu"
        floats = isinstance(module, nn.Linear) and module.weight.dtype != torch.int8
        least = _LEAST_OF_FLOATS if cpu and floats else 1
        tested = [rows for rows in _TESTED if least <= rows <= self._most]
        rows = min(_MOST_ROWS, max(self._most, _RESULTS // self._out_features)) if floats else self._most
        generator = torch.Generator().manual_seed(2)
        inputs = torch.randn((rows, self._in_features), generator=generator)
        found = function_counts(
            lambda part: module(part[None])[0],
            inputs.to(device=self._device, dtype=self._dtype),
            tested,
            _MULTIPLICATIONS // (self._in_features * self._out_features),
        )
        if cpu and found is not None and found.allowed == tuple(tested):
            # A CPU's kernels change at few numbers of rows, so the numbers between agree as well.
            return RowCounts(tuple(range(least, self._most + 1)))
        return found


@functools.cache
def _counts_of(linear: _Linear) -> RowCounts | None:
    return linear.tested()
