"""Earlier answers of one model, in which lookup finds what may come: bounded, and one tenant's apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from flowedge.drafting.suffix_index import MAX_N, TOKEN_BYTES, SuffixIndex

OWN_TENANT = ""  # of requests in one process, where nobody else asks


class EndedAnswer(NamedTuple):
    """An answer that has ended, and whose it is.

    Attributes:
        tokens: the answer behind the last MAX_N tokens of its prompt, by which its beginning is found.
    """

    tenant: str
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, tenant: str, prompt: Sequence[int], answer: Sequence[int]) -> EndedAnswer:
        return cls(tenant, (*prompt[-MAX_N:], *answer))


def store_bytes(most_tokens: int) -> int:
    """Return the bytes of a store of so many tokens, and of the answers that an open session still reads."""
    return 2 * TOKEN_BYTES * most_tokens


class AnswerStore:
    """The latest answers of each tenant, in memory alone.

    A session reads the answers that were there when it began: `of` returns an index that never changes.
    """

    def __init__(self, most_tokens: int) -> None:
        """most_tokens: of all answers of all tenants together."""
        self._most = most_tokens
        self._indexes: dict[str, SuffixIndex] = {}
        self._answers: deque[tuple[str, int]] = deque()  # tenant and tokens of each, the oldest first
        self._tokens = 0

    @classmethod
    def holding(cls, answers: Sequence[EndedAnswer]) -> AnswerStore:
        """Return a store with room for these answers and no more."""
        store = cls(sum(len(answer.tokens) + 1 for answer in answers))
        for answer in answers:
            store.add(answer)
        return store

    def __len__(self) -> int:
        """The tokens that are held."""
        return self._tokens

    def of(self, tenant: str) -> SuffixIndex | None:
        """Return a tenant's answers; None if there are none."""
        return self._indexes.get(tenant)

    def add(self, answer: EndedAnswer) -> None:
        """Hold an answer, and forget the oldest ones as long as there are too many tokens.

        An answer that is longer than the store is not held.
        """
        size = len(answer.tokens) + 1  # with the break before it
        if size > self._most:
            return
        gone: dict[str, int] = {}
        while self._tokens + size > self._most:
            tenant, freed = self._answers.popleft()
            gone[tenant] = gone.get(tenant, 0) + freed
            self._tokens -= freed
        for tenant, freed in gone.items():
            self._forget(tenant, freed)
        index = self._indexes.pop(answer.tenant, None)
        index = SuffixIndex() if index is None else index.copy()
        index.begin_text()
        index.extend(answer.tokens)
        self._indexes[answer.tenant] = index
        self._answers.append((answer.tenant, size))
        self._tokens += size

    def _forget(self, tenant: str, count: int) -> None:
        """Forget a tenant's oldest answers, which take `count` tokens and breaks."""
        index = self._indexes[tenant].copy()
        if count == len(index.tokens):
            del self._indexes[tenant]
            return
        index.drop(count)
        self._indexes[tenant] = index
