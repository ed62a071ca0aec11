"""Which object to fetch next, and from which device: pure functions of what is known about all devices."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flowedge.weights.fetch.source import Source


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
