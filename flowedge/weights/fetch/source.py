"""A device that objects are fetched from, and which object to fetch next from which device.

The choice is a pure function of what is known about all devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flowedge.weights.local_weights import HELD, RECEIVING

FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 300.0  # for which a device that broke off is put aside
_MOST_DOUBLINGS = 16  # of the pause; no float holds 2 ** 1024
_MEASURED_S = 0.2  # shorter times say little about a rate
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
    strikes: int = 0  # objects that it broke off, less the objects that it sent as a whole
    aside_until: float = 0.0  # while other devices have an object, it is not asked for it before then
    aside_for: str = ""  # why it was put aside
    whole_bytes: int = 0  # of its whole objects
    waited_s: float = 0.0  # for these bytes

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
        """Leave the device out until a request to it succeeds."""
        self.problem, self.held, self.receiving = problem, frozenset(), frozenset()

    def put_aside(self, reason: str, now: float) -> None:
        """Prefer other devices for a time, which grows with each object that it breaks off."""
        self.strikes += 1
        pause = min(FIRST_PAUSE_S * 2 ** min(self.strikes - 1, _MOST_DOUBLINGS), MOST_PAUSE_S)
        self.aside_until, self.aside_for = now + pause, reason

    @property
    def rate(self) -> float:
        """Bytes per second of its streams; a lower bound while little is known."""
        return self.whole_bytes / max(self.waited_s, _MEASURED_S)

    def delivered(self, count: int, waited_s: float) -> None:
        """Take in that it has sent the last `count` bytes of an object, and how long they were waited for."""
        self.strikes = max(0, self.strikes - 1)
        self.whole_bytes += count
        self.waited_s += waited_s

    def in_words(self) -> str:
        """Why nothing is received from it."""
        if self.damaged >= MAX_DAMAGED:
            return f"{self.address} sent {self.damaged} damaged objects"
        return f"{self.address}: {self.problem or self.aside_for or 'it does not have the missing objects'}"


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


def choose_trusted(
    wanted: Sequence[str],
    sources: Sequence[Source],
    most_of_one: int,
    may_wait: Container[str],
    now: float,
) -> Fetch | None:
    """Choose as `choose_fetch`; devices that are put aside are asked only for what no other device has.

    now: seconds of the clock of `aside_until`.
    """
    trusted = [source for source in sources if source.aside_until <= now]
    fetch = choose_fetch(wanted, trusted, most_of_one, may_wait)
    if fetch is not None:
        return fetch
    rest = [digest for digest in wanted if not any(digest in source.held for source in trusted)]
    return choose_fetch(rest, sources, most_of_one, may_wait)


def is_straggler(
    digest: str, source: Source, rate: float, others: Iterable[Source], times: float, now: float
) -> bool:
    """Return whether another device that has an object would send it so many times faster.

    rate: bytes per second at which the object comes from `source`.
    """
    return any(
        other is not source
        and other.is_usable
        and other.aside_until <= now
        and digest in other.held
        and other.rate > times * rate
        for other in others
    )


def _least_loaded(holders: Iterable[Source], digest: str) -> Source:
    return min(holders, key=lambda source: (source.sending + source.ours, _mix(source.address, digest)))


def _mix(one: str, other: str) -> bytes:
    return hashlib.sha256(f"{one}\0{other}".encode()).digest()
