"""The tokens of a session's text that a drafter's vocabulary lacks."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import linear

from flowedge.core.arrays import IntArray
from flowedge.drafting.proposal_head import MOST_SEEN, ProposalHead
from flowedge.models.host.copies import to_device

_FIRST_ROOM = 16  # rows; the room doubles when it is full


class SeenTokens:
    """Tokens outside of a draft vocabulary that a session's text has, and their rows of the LM head.

    What a text has named comes again, so these tokens are proposed as well. Which ones they are depends on
    the session's true rows alone. Adding a token copies one row of the exact head.

    Attributes:
        ids: int64 [columns + count], the tokens of the head's columns and then the seen ones.
    """

    ids: torch.Tensor

    def __init__(self, head: ProposalHead) -> None:
        """Extend the columns of a head that has a vocabulary."""
        assert head.vocabulary is not None and head.ids is not None
        self._head, self._vocabulary, self.ids = head, head.vocabulary, head.ids
        self._tokens: list[int] = []
        self._rows: list[int] = []  # the true row that brought each token
        self._weight = head.exact.weight[:0]

    @property
    def count(self) -> int:
        return len(self._tokens)

    def add(self, first_row: int, tokens: IntArray) -> None:
        """Note the tokens int64 [n] of true rows from `first_row` on."""
        possible = np.flatnonzero(tokens < self._vocabulary.vocab_size)
        places = possible[self._vocabulary.outside(tokens[possible])]
        known = set(self._tokens)
        added: list[int] = []
        for place in places.tolist():
            token = int(tokens[place])
            if token not in known and self.count + len(added) < MOST_SEEN:
                known.add(token)
                added.append(token)
                self._rows.append(first_row + place)
        if added:
            self._copy(added)

    def truncate(self, rows: int) -> None:
        """Forget what true rows from `rows` on have brought."""
        count = sum(row < rows for row in self._rows)
        if count < self.count:
            del self._tokens[count:], self._rows[count:]
            self.ids = self.ids[: self._head.columns + count]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the seen tokens' logits float32 [n, count] of states [n, hidden]."""
        weight = self._weight[: self.count]
        return self._head.exact.scaled(linear(states.to(weight.dtype), weight).float())

    def _copy(self, tokens: list[int]) -> None:
        weight = self._head.exact.weight
        start, stop = self.count, self.count + len(tokens)
        if stop > len(self._weight):
            room = min(max(stop, 2 * start, _FIRST_ROOM), MOST_SEEN)
            larger = weight.new_zeros((room, weight.shape[1]))
            larger[:start] = self._weight[:start]
            self._weight = larger
        (ids,) = to_device(weight.device, np.array(tokens, dtype=np.int64))
        self._weight[start:stop] = weight[ids]
        self._tokens += tokens
        self.ids = torch.cat((self.ids, ids))


def seen_by(head: ProposalHead) -> SeenTokens | None:
    """Return the seen tokens of a new session; None where the head has the whole vocabulary."""
    return None if head.vocabulary is None else SeenTokens(head)
