"""The target's rows for the drafter: accepted, and not handed to it yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Prune, Tapped


class DrafterInput:
    """Features of rows and the tokens after them, in order.

    Draft rows may come without the values that stages keep (see Open.keeps_taps). These follow when a prune
    has accepted the rows, from each stage in the order of the rows.

    Attributes:
        taken: number of rows that the drafter has been given.
    """

    def __init__(self, width: int, dtype: str, kept: Sequence[tuple[int, int]], taken: int = 0) -> None:
        """Begin without rows that wait.

        Args:
            width: values of a whole row; dtype: their numpy name.
            kept: for each stage that keeps some of them, the first and the one behind the last.
            taken: rows that the drafter has already.
        """
        self.taken = taken
        self._width = width
        self._dtype = dtype
        self._kept = dict(kept)
        self._columns = np.ones(width, dtype=bool)  # that all rows come with
        for first, stop in kept:
            self._columns[first:stop] = False
        self._tapped: dict[int, list[Payload]] = {first: [] for first in self._kept}
        self._due = dict.fromkeys(self._kept, 0)  # accepted rows that a stage has not sent
        self._features: list[Payload] = []
        self._tokens: list[IntArray] = []

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @property
    def complete(self) -> bool:
        """Whether all values of all rows are here."""
        wanted = sum(len(rows) for rows in self._features if rows.shape[1] < self._width)
        return all(sum(map(len, rows)) >= wanted for rows in self._tapped.values())

    def add(self, features: Payload | None, next_tokens: IntArray) -> None:
        """Add rows [n, width], or without the values that stages keep, and the token after each: int64 [n].

        features: None if the drafter needs none of any row.
        """
        if features is not None:
            self._features.append(features)
        self._tokens.append(next_tokens)

    def accept(self, prune: Prune) -> None:
        """Note that every stage is to send its values of the rows that a prune accepts."""
        for first in self._due:
            self._due[first] += prune.accepted

    def take_tapped(self, tapped: Tapped) -> None:
        """Take in what a stage has kept.

        Raises:
            ProtocolError: when it does not fit the rows that were accepted.
        """
        first, rows = tapped.first, tapped.rows
        if first not in self._kept:
            raise ProtocolError(
                f"tapped values from column {first} of a row came; no stage was asked to keep these"
            )
        wanted = self._kept[first] - first
        fits = rows.ndim == 2 and rows.shape[1] == wanted and rows.dtype.name == self._dtype
        if not fits or len(rows) > self._due[first]:
            raise ProtocolError(
                f"tapped values came as {rows.dtype.name} {list(rows.shape)}; "
                f"{self._due[first]} rows of {wanted} {self._dtype} are due"
            )
        self._due[first] -= len(rows)
        self._tapped[first].append(rows)

    def tokens(self) -> IntArray:
        """Return the tokens after all rows that wait, of which there is one at least: int64 [n]."""
        self._tokens = [np.concatenate(self._tokens)]
        return self._tokens[0]

    def take(self) -> tuple[Payload | None, IntArray]:
        """Return all rows, which must be complete, and forget them; no features if none were added."""
        tokens = np.concatenate(self._tokens)
        self.taken += len(tokens)
        features = self._whole() if self._features else None
        self._tokens.clear()
        self._features.clear()
        return features, tokens

    def _whole(self) -> Payload:
        tapped = {first: np.concatenate(rows) for first, rows in self._tapped.items() if rows}
        begun = 0
        for index, rows in enumerate(self._features):
            if rows.shape[1] == self._width:
                continue
            whole: Payload = np.empty((len(rows), self._width), dtype=rows.dtype)
            whole[:, self._columns] = rows
            for first, stop in self._kept.items():
                whole[:, first:stop] = tapped[first][begun : begun + len(rows)]
            self._features[index] = whole
            begun += len(rows)
        for rows_of_stage in self._tapped.values():
            rows_of_stage.clear()
        return np.concatenate(self._features)
