"""The correction of a head's predictions by the errors that it has made in the same session.

An EAGLE head predicts the target's next hidden state, and the true state comes with the next row. So the
draft node knows each error of the head, at no cost. A prediction that resembles an earlier one will have a
similar error. In a text that repeats itself, in words or in form, the corrected prediction follows the
target's earlier answer.
"""

from __future__ import annotations

import torch

from flowedge.models.host.lazy_zeros import lazy_zeros

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
        shape = rows, hidden
        self._predicted, self._directions, self._errors = (lazy_zeros(shape, dtype, device) for _ in range(3))
        self._vectors = (self._predicted, self._directions, self._errors)

    @staticmethod
    def row_bytes(hidden: int, dtype: torch.dtype) -> int:
        return ROW_VECTORS * hidden * dtype.itemsize

    def clear(self) -> None:
        """Fill all rows with zeros, as in a new Recall."""
        for each in self._vectors:
            each.zero_()

    def copy_rows(self, other: Recall, rows: int) -> None:
        """Take over the first rows of another Recall."""
        for own, others in zip(self._vectors, other._vectors, strict=True):
            own[:rows] = others[:rows]

    def extend(self, start: int, given: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """Store true rows from `start` on, in place of earlier ones, and correct their predictions.

        Args:
            given: [n, hidden], the target's hidden states that the rows begin with.
            predicted: [n, hidden], the head's predictions of the states after them.

        Returns:
            [n, hidden], each prediction corrected by the errors known before its row.
        """
        stop, device = start + len(given), predicted.device
        first = max(start - 1, 0)
        rows, before = (torch.arange(*each, device=device) for each in ((start, stop), (first, stop - 1)))
        self.note(rows, predicted, before, given[first + 1 - start :])
        chunks = [slice(begin, min(begin + CHUNK, len(given))) for begin in range(0, len(given), CHUNK)]
        corrected = []
        for chunk in chunks:
            place = slice(max(start + chunk.start - WINDOW, 0), start + chunk.stop - 1)
            corrected.append(self._corrected(predicted[chunk], rows[chunk, None], place))
        return torch.cat(corrected)

    def corrected(self, predicted: torch.Tensor, rows: int) -> torch.Tensor:
        """Predictions [n, hidden] corrected by the errors of the first `rows` true rows."""
        known = torch.full((1, 1), rows, device=predicted.device)
        return self._corrected(predicted, known, slice(max(rows - WINDOW, 0), rows))

    def note(
        self, rows: torch.Tensor, predicted: torch.Tensor, before: torch.Tensor, given: torch.Tensor
    ) -> None:
        """Store predictions, and the errors of predictions whose true states are given.

        Args:
            rows: int64 [n], the rows that predict `predicted` [n, hidden].
            before: int64 [m], the rows whose predictions stand for the true states `given` [m, hidden].
        """
        self._predicted.index_copy_(0, rows, predicted)
        self._directions.index_copy_(0, rows, _direction(predicted))
        self._errors.index_copy_(0, before, given - self._predicted.index_select(0, before))

    def corrected_within(self, predicted: torch.Tensor, known: torch.Tensor, columns: int) -> torch.Tensor:
        """Predictions [n, hidden] corrected by errors among the first `columns` rows, without host work.

        Args:
            known: int64 [n], the number of true rows whose errors correct each prediction; all numbers are
                within n of the largest.
        """
        if columns <= 2 * WINDOW:
            return self._corrected(predicted, known[:, None], slice(0, columns))
        # Copying the rows of the window takes less time than reading all columns.
        span = min(WINDOW + len(known), columns)
        place = (known.amax() - span).clamp(min=0) + torch.arange(span, device=known.device)
        return self._corrected(predicted, known[:, None], place)

    def _corrected(
        self, predicted: torch.Tensor, known: torch.Tensor, place: slice | torch.Tensor
    ) -> torch.Tensor:
        """Predictions [n, hidden], each corrected by the latest errors of the first known[i] true rows.

        The correction is the weighted mean of these errors and of an error of 0. An error's weight is
        exp((cosine - 1) / BANDWIDTH), by the cosine of its prediction and this one; that of 0 is RESISTANCE.

        Args:
            known: int64 [n, 1], or [1, 1] for all predictions.
            place: the rows whose errors are read, at least the last WINDOW before each of `known`.
        """
        if isinstance(place, slice):
            directions, errors = self._directions[place], self._errors[place]
            place = torch.arange(place.start, place.stop, device=predicted.device)
        else:
            directions, errors = (each.index_select(0, place) for each in (self._directions, self._errors))
        remembered = (place < known) & (place >= known - WINDOW)
        cosines = (_direction(predicted) @ directions.T).float()
        weights = torch.exp((cosines - 1) / BANDWIDTH) * remembered
        weights = weights / (weights.sum(dim=-1, keepdim=True) + RESISTANCE)
        return predicted + weights.to(predicted.dtype) @ errors


def _direction(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows.float(), dim=-1).to(rows.dtype)
