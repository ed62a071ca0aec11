"""The correction of a head's predictions by the errors that it has made in the same session.

An EAGLE head predicts the target's next hidden state, and the true state comes with the next row. So the
draft node knows each error of the head, at no cost. A prediction that resembles an earlier one will have a
similar error. In a text that repeats itself, in words or in form, the corrected prediction follows the
target's earlier answer.
"""

from __future__ import annotations

import torch

BANDWIDTH = 0.05  # in units of 1 - cosine: the distance at which an earlier prediction hardly counts
RESISTANCE = 0.1  # the weight of an error of 0, relative to an earlier prediction at distance 0
WINDOW = 1024  # rows whose errors are used
CHUNK = 128  # rows that are corrected at once
ROW_VECTORS = 3  # vectors of the hidden size that are stored for each row


class Recall:
    """The predictions of one session and their errors; the error of row t is known with row t + 1."""

    def __init__(
        self, rows: int, hidden: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate memory for `rows` true rows of width `hidden`."""
        self._predicted = torch.zeros((rows, hidden), dtype=dtype, device=device)
        self._directions = torch.zeros_like(self._predicted)
        self._errors = torch.zeros_like(self._predicted)

    @staticmethod
    def row_bytes(hidden: int, dtype: torch.dtype) -> int:
        return ROW_VECTORS * hidden * dtype.itemsize

    def extend(self, start: int, given: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """Store true rows from `start` on, in place of earlier ones, and correct their predictions.

        Args:
            given: [n, hidden], the target's hidden states that the rows begin with.
            predicted: [n, hidden], the head's predictions of the states after them.

        Returns:
            [n, hidden], each prediction corrected by the errors known before its row.
        """
        stop = start + len(given)
        self._predicted[start:stop] = predicted
        self._directions[start:stop] = _direction(predicted)
        first = max(start - 1, 0)
        self._errors[first : stop - 1] = given[first + 1 - start :] - self._predicted[first : stop - 1]
        chunks = [range(first, min(first + CHUNK, stop)) for first in range(start, stop, CHUNK)]
        return torch.cat(
            [self._corrected(predicted[known[0] - start : known[-1] + 1 - start], known) for known in chunks]
        )

    def corrected(self, predicted: torch.Tensor, rows: int) -> torch.Tensor:
        """Predictions [n, hidden] corrected by the errors of the first `rows` true rows."""
        return self._corrected(predicted, range(rows, rows + 1))

    def _corrected(self, predicted: torch.Tensor, known: range) -> torch.Tensor:
        """Predictions [n, hidden], each corrected by the latest errors of the first known[i] true rows.

        `known` has n numbers, or one for all predictions.

        The correction is the weighted mean of these errors and of an error of 0. An error's weight is
        exp((cosine - 1) / BANDWIDTH), by the cosine of its prediction and this one; that of 0 is RESISTANCE.
        """
        stop = known[-1]
        place = torch.arange(max(known[0] - WINDOW, 0), stop, device=predicted.device)
        counts = torch.arange(known[0], known[-1] + 1, device=predicted.device)[:, None]
        remembered = (place < counts) & (place >= counts - WINDOW)
        directions, errors = (each[stop - len(place) : stop] for each in (self._directions, self._errors))
        cosines = (_direction(predicted) @ directions.T).float()
        weights = torch.exp((cosines - 1) / BANDWIDTH) * remembered
        weights = weights / (weights.sum(dim=-1, keepdim=True) + RESISTANCE)
        return predicted + weights.to(predicted.dtype) @ errors


def _direction(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows.float(), dim=-1).to(rows.dtype)
