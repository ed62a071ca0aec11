"""Which tensor to fetch next, and from whom: a pure function of what is known of everybody."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A device that may give objects.

    Attributes:
        is_draft_node: it has everything, and everybody asks it, so it is asked last.
        held, receiving: objects that it has, and those that it is receiving, by digest.
        sending: streams that it said it sends; ours: those that we receive from it.
    """

    address: str
    is_draft_node: bool
    held: Container[str]
    receiving: Container[str]
    sending: int
    ours: int


@dataclass(frozen=True)
class Fetch:
    """An object to fetch, and the device to ask."""

    digest: str
    address: str


def in_order(device: str, sizes: Mapping[str, int]) -> list[str]:
    """The order in which a device asks for objects: large ones first, and each device another.

    Devices that need the same then begin with different ones, and have something to give each other.
    """
    return sorted(sizes, key=lambda digest: (-sizes[digest].bit_length(), _mix(device, digest)))


def choose(
    wanted: Sequence[str], sources: Iterable[Source], most_of_one: int, may_wait: Container[str]
) -> Fetch | None:
    """What to fetch next, None when there is nothing to do but wait.

    An object that a device other than the draft node has goes first, then one that only the draft node has
    and nobody is receiving, then one of those that somebody is receiving, unless it may still be waited for.
    Of several devices the one that sends least is asked.

    wanted: objects in the order of preference; most_of_one: streams at once from one device.
    may_wait: objects that another device may be waited for.
    """
    free = [source for source in sources if source.ours < most_of_one]
    peers = [source for source in free if not source.is_draft_node]
    for digest in wanted:
        holders = [source for source in peers if digest in source.held]
        if holders:
            return Fetch(digest, _least_loaded(holders, digest).address)
    everybody = list(sources)
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
