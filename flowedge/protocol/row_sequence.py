"""The sequence of a session's rows, which the draft node alone changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.messages import CONTEXT, Prune


class RowSequence:
    """The context rows, then the sent draft rows, in the numbering of `epoch`.

    Attributes:
        epoch: number of the last prune.
        context: number of committed rows (l_glo); context_tokens: their tokens.
    """

    def __init__(self, session: str, context_tokens: Sequence[int] = ()) -> None:
        """context_tokens: of the rows that are context from the start."""
        self._session = session
        self.epoch = 0
        self.context_tokens = list(context_tokens)
        # Of the draft rows, context to length. There are few, for which lists are quicker than arrays.
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._positions: list[int] = []

    @property
    def context(self) -> int:
        return len(self.context_tokens)

    @property
    def length(self) -> int:
        return len(self.context_tokens) + len(self._tokens)

    @property
    def has_draft_rows(self) -> bool:
        return bool(self._tokens)

    @property
    def tokens(self) -> IntArray:
        """The tokens of the draft rows, context to length: int64 [d]."""
        return np.array(self._tokens, dtype=np.int64)

    @property
    def parents(self) -> IntArray:
        """The parents of the draft rows, CONTEXT where it is the last context row: int64 [d]."""
        return np.array(self._parents, dtype=np.int64)

    @property
    def positions(self) -> IntArray:
        """The absolute positions of the draft rows: int64 [d]."""
        return np.array(self._positions, dtype=np.int64)

    def commit(self, tokens: Sequence[int]) -> IntArray:
        """Append committed rows; returns their indices, which are their positions too: int64 [rows]."""
        if self._tokens:
            raise ValueError("rows cannot be committed while draft rows are in flight")
        first = self.context
        self.context_tokens += tokens
        return np.arange(first, self.context)

    def places(self, first: int, count: int) -> tuple[list[int], list[int]]:
        """Return the positions and the parents of the rows first .. first + count, as their segment has them.

        They are draft rows, or rows that were committed together.
        """
        if first < self.context:
            rows = range(first, first + count)
            return [*rows], [CONTEXT, *rows[:-1]]
        draft = slice(first - self.context, first - self.context + count)
        return self._positions[draft], self._parents[draft]

    def append(self, tokens: tuple[int, ...], parents: tuple[int, ...]) -> int:
        """Append draft rows and return the index of the first; a parent is an earlier draft row, or CONTEXT.

        Raises:
            ValueError: when a parent is neither.
        """
        first, context = self.length, self.context
        positions = self._positions.copy()
        for row, parent in enumerate(parents, start=first):
            if parent != CONTEXT and not context <= parent < row:
                raise ValueError(f"row {row} has parent {parent}, which is not an earlier draft row")
            positions.append(context if parent == CONTEXT else positions[parent - context] + 1)
        if len(tokens) != len(parents):
            raise ValueError(f"{len(tokens)} tokens have {len(parents)} parents")
        self._tokens += tokens
        self._parents += parents
        self._positions = positions
        return first

    def prune(self, accepted: tuple[int, ...], root: int | None, *, in_turn: bool = False) -> Prune:
        """Make the accepted rows context and keep the subtree of row `root`; None keeps no draft row.

        The returned message has every stage do the same; `in_turn` is as in Prune.
        """
        draft = [] if root is None else self._subtree(root)
        return self._retain(accepted, draft, in_turn=in_turn)

    def _subtree(self, root: int) -> list[int]:
        """Return a draft row and its descendants, ascending."""
        inside = {root}
        for row, parent in enumerate(self._parents[root + 1 - self.context :], start=root + 1):
            if parent in inside:
                inside.add(row)
        return sorted(inside)

    def keep(self, end: int, context: int) -> Prune:
        """Drop the rows of a chain from row `end` on, and make the rows before `context` context.

        The returned message has the stage do the same.
        """
        return self._retain(range(self.context, context), range(context, end))

    def _retain(self, accepted: Sequence[int], draft: Sequence[int], *, in_turn: bool = False) -> Prune:
        """Make accepted rows context and keep draft rows, whose parents must be kept or accepted."""
        prune = Prune(
            session=self._session,
            epoch=self.epoch + 1,
            source_len=self.length,
            context=(context := self.context),
            accepted=len(accepted),
            retained=np.array([*accepted, *draft], dtype=np.int64),
            in_turn=in_turn,
        )
        moved = {row: place for place, row in enumerate(draft, start=context + len(accepted))}
        made_context = [self._tokens[row - context] for row in accepted]
        offsets = [row - context for row in draft]
        self._tokens = [self._tokens[offset] for offset in offsets]
        self._positions = [self._positions[offset] for offset in offsets]
        self._parents = [moved.get(self._parents[offset], CONTEXT) for offset in offsets]
        self.epoch += 1
        self.context_tokens += made_context
        return prune
