"""A head's own errors in a session, by which its next predictions are corrected.

An EAGLE head predicts the target's next hidden state, and the true one comes with the next row. So the draft
node knows each error that the head has made, at no cost. Where a prediction resembles an earlier one, so will
its error: text that repeats itself, in words or in form, is then foreseen as the target has answered it.
"""

from __future__ import annotations

import torch

BANDWIDTH = 0.05  # of 1 - cosine: how near an earlier prediction has to be to count
RESISTANCE = 0.1  # earlier predictions at distance 0 that an error of 0 counts as
WINDOW = 1024  # rows whose errors are remembered
CHUNK = 128  # rows that are corrected at once
ROW_VECTORS = 3  # as wide as a hidden state, that are kept of a row


class Recall:
    """The latest WINDOW predictions and errors of one session; row t has been told by row t + 1."""

    def __init__(self, rows: int, hidden: int, dtype: torch.dtype) -> None:
        """Room for so many true rows of this width."""
        self._predicted = torch.zeros((rows, hidden), dtype=dtype)
        self._directions = torch.zeros((rows, hidden), dtype=dtype)
        self._errors = torch.zeros((rows, hidden), dtype=dtype)

    @staticmethod
    def row_bytes(hidden: int, dtype: torch.dtype) -> int:
        return ROW_VECTORS * hidden * dtype.itemsize

    def extend(self, start: int, given: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """Take in true rows from `start` on, which replace any that were there.

        Args:
            given: [n, hidden], the target's hidden states that the rows begin with.
            predicted: [n, hidden], what the head made of them: those of the rows after each.

        Returns:
            [n, hidden], `predicted` corrected by what was known before each.
        """
        stop = start + len(given)
        self._predicted[start:stop] = predicted
        self._directions[start:stop] = _direction(predicted)
        first = max(start - 1, 0)
        self._errors[first : stop - 1] = given[first + 1 - start :] - self._predicted[first : stop - 1]
        rows = torch.arange(start, stop)
        chunks = [
            self._corrected(predicted[i : i + CHUNK], rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)
        ]
        return torch.cat(chunks)

    def corrected(self, predicted: torch.Tensor, rows: int) -> torch.Tensor:
        """Predictions [n, hidden] corrected by the errors of the first `rows` true rows."""
        return self._corrected(predicted, torch.full((len(predicted),), rows))

    def _corrected(self, predicted: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """Predictions [n, hidden], each corrected by the latest errors of the first known[i] true rows.

        What is added is the mean of errors, weighed by exp((cosine - 1) / BANDWIDTH) of the predictions they
        belong to, and of an error of 0 with the weight RESISTANCE.
        """
        stop = int(known.max())
        place = torch.arange(max(int(known.min()) - WINDOW, 0), stop)
        remembered = (place < known[:, None]) & (place >= known[:, None] - WINDOW)
        directions, errors = (each[stop - len(place) : stop] for each in (self._directions, self._errors))
        cosines = (_direction(predicted) @ directions.T).float()
        weights = torch.exp((cosines - 1) / BANDWIDTH) * remembered
        weights = weights / (weights.sum(dim=-1, keepdim=True) + RESISTANCE)
        return predicted + weights.to(predicted.dtype) @ errors


def _direction(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows.float(), dim=-1).to(rows.dtype)
