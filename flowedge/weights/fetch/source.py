"""A device that objects are fetched from, and which object to fetch next from which device.

The choice is a pure function of what is known about all devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class Fetch:
    """An object to fetch, and the device to ask for it."""

    digest: str
    address: str


def fetch_order(device: str, sizes: Mapping[str, int]) -> list[str]:
    """The digests in the order in which a device fetches them: large objects first.

    Objects of about the same size are in a different order on each device, so that devices which need the
    same objects soon have different ones to give to each other.
    sizes: bytes of each object, by digest.
    """
    return sorted(sizes, key=lambda digest: (-sizes[digest].bit_length(), _mix(device, digest)))


def choose_fetch(
    wanted: Sequence[str], sources: Iterable[Source], most_of_one: int, may_wait: Container[str]
) -> Fetch | None:
    """Choose the next fetch; None if there is nothing to do but wait.

    Objects that a device other than the draft node has come first, then objects that only the draft node has
    and no device is receiving. An object that a device is receiving comes last, once it may not be waited
    for any longer. Of several devices, the one that sends the fewest streams is asked.

    wanted: digests in order of preference. most_of_one: streams at once from one device.
    may_wait: digests of objects that may still be waited for.
    """
    everybody = list(sources)
    free = [source for source in everybody if source.ours < most_of_one]
    for digest in wanted:
        holders = [source for source in free if not source.is_draft_node and digest in source.held]
        if holders:
            return Fetch(digest, _least_loaded(holders, digest).address)
    late: Fetch | None = None
    for digest in wanted:
        holders = [source for source in free if source.is_draft_node and digest in source.held]
        if not holders:
            continue
        fetch = Fetch(digest, _least_loaded(holders, digest).address)
        if not any(digest in source.receiving for source in everybody):
            return fetch
        if late is None and digest not in may_wait:
            late = fetch
    return late


def _least_loaded(holders: Iterable[Source], digest: str) -> Source:
    return min(holders, key=lambda source: (source.sending + source.ours, _mix(source.address, digest)))


def _mix(one: str, other: str) -> bytes:
    return hashlib.sha256(f"{one}\0{other}".encode()).digest()
