"""The sequence of a session's rows, which the draft node alone changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.messages import CONTEXT, Prune
from flowedge.core.tree import subtree
from flowedge.protocol.epochs import renumbered_parents

_EMPTY = np.zeros(0, dtype=np.int64)


class RowSequence:
    """The context rows, then the sent draft rows, in the numbering of `epoch`.

    Attributes:
        epoch: number of the last prune.
        context: number of committed rows (l_glo); context_tokens: their tokens.
        tokens, parents, positions: int64 [d] of the draft rows, context to length.
    """

    def __init__(self, session: str, context_tokens: Sequence[int] = ()) -> None:
        """context_tokens: of the rows that are context from the start."""
        self._session = session
        self.epoch = 0
        self.context_tokens = list(context_tokens)
        self.tokens: IntArray = _EMPTY
        self.parents: IntArray = _EMPTY
        self.positions: IntArray = _EMPTY

    @property
    def context(self) -> int:
        return len(self.context_tokens)

    @property
    def length(self) -> int:
        return self.context + len(self.tokens)

    def commit(self, tokens: Sequence[int]) -> IntArray:
        """Append committed rows; returns their indices, which are their positions too: int64 [rows]."""
        if len(self.tokens):
            raise ValueError("rows cannot be committed while draft rows are in flight")
        first = self.context
        self.context_tokens += tokens
        return np.arange(first, self.context)

    def append(self, tokens: tuple[int, ...], parents: tuple[int, ...]) -> int:
        """Append draft rows and return the index of the first; a parent is an earlier draft row, or CONTEXT.

        Raises:
            ValueError: when a parent is neither.
        """
        first = self.length
        positions = self.positions.tolist()
        for row, parent in enumerate(parents, start=first):
            if parent != CONTEXT and not self.context <= parent < row:
                raise ValueError(f"row {row} has parent {parent}, which is not an earlier draft row")
            positions.append(self.context if parent == CONTEXT else positions[parent - self.context] + 1)
        if len(tokens) != len(parents):
            raise ValueError(f"{len(tokens)} tokens have {len(parents)} parents")
        self.tokens = np.concatenate([self.tokens, np.array(tokens, dtype=np.int64)])
        self.parents = np.concatenate([self.parents, np.array(parents, dtype=np.int64)])
        self.positions = np.array(positions, dtype=np.int64)
        return first

    def prune(self, accepted: tuple[int, ...], root: int | None, *, in_turn: bool = False) -> Prune:
        """Make the accepted rows context and keep the subtree of row `root`; None keeps no draft row.

        The returned message has every stage do the same; `in_turn` is as in Prune.
        """
        draft = _EMPTY
        if root is not None:
            draft = self.context + subtree(self.parents - self.context, self.positions, root - self.context)
        return self._retain(np.array(accepted, dtype=np.int64), draft, in_turn=in_turn)

    def keep(self, end: int, context: int) -> Prune:
        """Drop the rows of a chain from row `end` on, and make the rows before `context` context.

        The returned message has the stage do the same.
        """
        return self._retain(np.arange(self.context, context), np.arange(context, end))

    def _retain(self, accepted: IntArray, draft: IntArray, *, in_turn: bool = False) -> Prune:
        """Make accepted rows context and keep draft rows, whose parents must be kept or accepted."""
        prune = Prune(
            session=self._session,
            epoch=self.epoch + 1,
            source_len=self.length,
            context=self.context,
            accepted=len(accepted),
            retained=np.concatenate([accepted, draft]),
            in_turn=in_turn,
        )
        offsets = draft - self.context
        made_context = self.tokens[accepted - self.context].tolist()
        self.tokens = self.tokens[offsets]
        self.positions = self.positions[offsets]
        self.parents = renumbered_parents(prune, self.parents[offsets])
        self.epoch += 1
        self.context_tokens += made_context
        return prune
