"""Texts in a batch, as a head is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flowedge.training.documents import TrainingText

LEAST_FILL = 0.7  # a text that fills less of the batch's longest text is not padded to it


@dataclass(frozen=True)
class Batch:
    """Texts of similar lengths, padded on their right, where no row sees the padding under a causal mask.

    Attributes:
        rows: float32 [texts, length, width], see TrainingTarget.features.
        spread: [texts, 1, 1], the standard deviation of each text's rows.
        tokens: int32 [texts, length].
        counted: bool [texts, length], see TrainingText; False for padding.
    """

    rows: Tensor
    spread: Tensor
    tokens: np.typing.NDArray[np.int32]
    counted: Tensor

    @classmethod
    def of(cls, documents: Sequence[TrainingText], rows: Sequence[Tensor], hidden: int) -> Batch:
        """The batch of some texts.

        Args:
            rows: the rows of each text, float32 [length, width].
            hidden: the width of the hidden state at the front of each row.
        """
        spread = torch.stack([each[:, :hidden].std() for each in rows])
        tokens = [torch.from_numpy(document.tokens) for document in documents]
        counted = [torch.from_numpy(document.counted) for document in documents]
        return cls(
            pad_sequence(list(rows), batch_first=True),
            spread[:, None, None],
            pad_sequence(tokens, batch_first=True).numpy(),
            pad_sequence(counted, batch_first=True).to(rows[0].device),
        )


def like_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """The texts' indices, longest first, in groups whose shortest text fills LEAST_FILL of the longest."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not groups or lengths[index] < LEAST_FILL * longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups
