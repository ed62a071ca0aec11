"""What is known of a device that objects are fetched from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowedge.weights.fetch.choice import Source
from flowedge.weights.fetch.peer import Peer
from flowedge.weights.library import HELD, RECEIVING

MAX_DAMAGED = 3  # objects; a device that sent so many wrong ones is not asked any more


@dataclass
class SourceState:
    """One device, as it was when it was asked last.

    Attributes:
        ours: streams from it; received: bytes that came from it.
        damaged: objects from it that were others than asked for.
        was_asked: whether it has answered, or has not, once.
        problem: why it cannot be used now; empty when it can. It begins with that it has not answered yet.
    """

    peer: Peer
    is_draft_node: bool
    held: set[str] = field(default_factory=set)
    receiving: set[str] = field(default_factory=set)
    sending: int = 0
    ours: int = 0
    received: int = 0
    damaged: int = 0
    was_asked: bool = False
    problem: str = "it has not answered"

    @property
    def address(self) -> str:
        return self.peer.address

    @property
    def is_usable(self) -> bool:
        return not self.problem and self.damaged < MAX_DAMAGED

    def answered(self, asked: Sequence[str], held: bytes, sending: int) -> bool:
        """Take an answer of Have; returns whether it says anything new."""
        before = (self.held, self.receiving, self.problem)
        self.held = {digest for digest, state in zip(asked, held, strict=True) if state == HELD}
        self.receiving = {digest for digest, state in zip(asked, held, strict=True) if state == RECEIVING}
        # Its number has ours in it.
        self.sending, self.problem = max(0, sending - self.ours), ""
        return before != (self.held, self.receiving, self.problem)

    def failed(self, problem: str) -> None:
        """It cannot be used before it answers again."""
        self.problem, self.held, self.receiving = problem, set(), set()

    def as_source(self) -> Source:
        return Source(self.address, self.is_draft_node, self.held, self.receiving, self.sending, self.ours)

    def in_words(self) -> str:
        """Why nothing comes from it."""
        if self.damaged >= MAX_DAMAGED:
            return f"{self.address} sent {self.damaged} objects that were damaged"
        return f"{self.address}: {self.problem or 'it does not have what is missing'}"
