"""The logits of the rows of a draft tree that a walk visits, computed a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowedge.models.lm_head import LMHead

AHEAD = 4  # rows of a product, which take little longer than a single row


class PathLogits:
    """Logits for a walk that visits a short path of the tree; most rows are never asked for.

    The head must give a row the same bits whatever the number of rows (see LMHead.rows_are_apart).
    """

    def __init__(self, head: LMHead, hidden: torch.Tensor, parents: Sequence[int]) -> None:
        """Prepare the rows [n, hidden] of a tree.

        Args:
            parents: the parent row of each row; of the children of a row, the likeliest comes first.
        """
        self._head = head
        self._hidden = hidden
        self._likeliest: dict[int, int] = {}  # child of each row
        for row, parent in enumerate(parents):
            self._likeliest.setdefault(parent, row)
        self._known: dict[int, torch.Tensor] = {}

    def knows(self, row: int) -> bool:
        """Whether the logits of a row are computed."""
        return row in self._known

    @property
    def computed(self) -> int:
        """The number of rows whose logits were computed."""
        return len(self._known)

    def of(self, row: int) -> torch.Tensor:
        """Return the logits float32 [vocab] of a row, and compute those of the rows that follow probably."""
        self.compute([(self, row)])
        return self._known[row]

    @staticmethod
    def compute(wanted: Sequence[tuple[PathLogits, int]]) -> None:
        """Compute the logits of a row of each tree, and of the rows that follow it probably, by one product.

        All trees are of one head; a row whose logits are known costs nothing.
        """
        paths = [(logits, logits._ahead(row)) for logits, row in wanted if row not in logits._known]
        if not paths:
            return
        hidden = [logits._hidden[path] for logits, path in paths]
        computed = paths[0][0]._head.logits(hidden[0] if len(hidden) == 1 else torch.cat(hidden))
        for (logits, path), own in zip(
            paths, torch.split(computed, [len(path) for _, path in paths]), strict=True
        ):
            logits._known.update(zip(path, own, strict=True))

    def _ahead(self, row: int) -> list[int]:
        """A row and those that follow it probably."""
        path = [row]
        while len(path) < AHEAD and (child := self._likeliest.get(path[-1])) is not None:
            path.append(child)
        return path
