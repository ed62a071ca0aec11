"""The self-test of products: the numbers of rows with which each row of a linear layer has the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import nn

from flowedge.models.exact.row_counts import PREFILL_ROWS, RowCounts

_TESTED = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32, 33, 48, 64, PREFILL_ROWS)
_SHIFTED = (16, 64, PREFILL_ROWS)  # numbers of rows with which rows are tested in other places too
_LEAST_USEFUL = 16  # with fewer rows in a product, speculation would gain nothing

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
    function: Function, inputs: torch.Tensor, tested: Iterable[int] = _TESTED
) -> RowCounts | None:
    """Find the numbers of rows for which a function gives a row of `inputs` [n, in] the same bits.

    Of several sets of numbers that agree among themselves, the largest set is returned.
    """
    sets: list[tuple[torch.Tensor, list[int]]] = []  # of numbers that agree, with the output of the largest
    for rows in sorted(tested, reverse=True):
        output = function(inputs[:rows])
        if rows in _SHIFTED and not _independent_of_place(function, inputs[:rows], output):
            continue
        for largest, members in sets:
            if torch.equal(output, largest[:rows]):
                members.append(rows)
                break
        else:
            sets.append((output, [rows]))
    if not sets:
        return None
    _, members = max(sets, key=lambda agreeing: len(agreeing[1]))
    return RowCounts(tuple(sorted(members)))


def _independent_of_place(function: Function, inputs: torch.Tensor, output: torch.Tensor) -> bool:
    shift = len(inputs) // 2 - 1
    return torch.equal(function(inputs.roll(shift, 0)).roll(-shift, 0), output)


class _Linear:
    """A linear layer, which equals other layers of the same kind and sizes on the same device."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device, most: int) -> None:
        self._module = module
        self._dtype = dtype
        self._device = device
        self._most = most
        self._in_features = int(cast(int, module.in_features))
        self._key = (
            type(module),
            self._in_features,
            module.out_features,
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
        generator = torch.Generator().manual_seed(2)
        inputs = torch.randn((self._most, self._in_features), generator=generator)
        found = function_counts(
            lambda rows: self._module(rows[None])[0],
            inputs.to(device=self._device, dtype=self._dtype),
            [rows for rows in _TESTED if rows <= self._most],
        )
        return found if found is None or self._device.type != "cpu" else _filled(found, self._most)


@functools.cache
def _counts_of(linear: _Linear) -> RowCounts | None:
    return linear.tested()


def _filled(counts: RowCounts, most: int) -> RowCounts:
    """Add the numbers between tested numbers that agree: a CPU's kernels change at few numbers of rows."""
    least = counts.allowed[0]
    if counts.allowed == tuple(rows for rows in _TESTED if least <= rows <= most):
        return RowCounts(tuple(range(least, most + 1)))
    return counts
