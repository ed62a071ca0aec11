"""A device that objects are fetched from."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flowedge.weights.local_weights import HELD, RECEIVING

MAX_DAMAGED = 3  # objects; a device that has sent so many damaged ones is not asked any more


@dataclass(frozen=True)
class SourceAddress:
    """The address of a device that may have objects. The draft node is asked last."""

    address: str
    is_draft_node: bool = False


@dataclass
class Source:
    """What is known about a device, from its latest answer and from the streams it has sent."""

    address: str
    is_draft_node: bool
    held: AbstractSet[str] = frozenset()  # digests of the objects that it has
    receiving: AbstractSet[str] = frozenset()  # digests of the objects that it is receiving itself
    sending: int = 0  # streams to other devices
    ours: int = 0  # streams to this device
    received: int = 0  # bytes
    damaged: int = 0  # objects from it that had another SHA-256
    was_asked: bool = False  # whether the first question was answered or has failed
    problem: str = "it has not answered"  # why it cannot be asked at present, empty if it can

    @property
    def is_usable(self) -> bool:
        return not self.problem and self.damaged < MAX_DAMAGED

    def take_answer(self, asked: Sequence[str], states: bytes, sending: int) -> bool:
        """Take over an answer of `Have`; return whether it says anything new.

        asked: digests. states: HELD, RECEIVING or ABSENT for each. sending: all streams that it sends.
        """
        before = (self.held, self.receiving, self.problem)
        self.held = {digest for digest, state in zip(asked, states, strict=True) if state == HELD}
        self.receiving = {digest for digest, state in zip(asked, states, strict=True) if state == RECEIVING}
        self.sending, self.problem = max(0, sending - self.ours), ""
        return before != (self.held, self.receiving, self.problem)

    def fail(self, problem: str) -> None:
        """Do not use the device until it answers again."""
        self.problem, self.held, self.receiving = problem, frozenset(), frozenset()

    def in_words(self) -> str:
        """Why nothing is received from it."""
        if self.damaged >= MAX_DAMAGED:
            return f"{self.address} sent {self.damaged} damaged objects"
        return f"{self.address}: {self.problem or 'it does not have the missing objects'}"
