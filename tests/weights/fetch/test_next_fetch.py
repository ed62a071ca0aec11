"""Who is asked for what."""

from __future__ import annotations

from collections import Counter

from flowedge.weights.fetch.source import Fetch, Source, choose_fetch, fetch_order


def source(
    address: str, held: str = "", *, draft: bool = False, receiving: str = "", sending: int = 0, ours: int = 0
) -> Source:
    return Source(address, draft, set(held), set(receiving), sending, ours)


D0 = source("d0", "abc", draft=True)


def test_peers_go_before_the_draft_node() -> None:
    assert choose_fetch("abc", [D0, source("p", "b", sending=9)], 3, ()) == Fetch("b", "p")


def test_the_one_that_sends_least_is_asked() -> None:
    assert choose_fetch("a", [source("p", "a", sending=2), source("q", "a", sending=1)], 3, ()) == Fetch(
        "a", "q"
    )
    assert choose_fetch("a", [source("p", "a", ours=2), source("q", "a", ours=1)], 3, ()) == Fetch("a", "q")


def test_a_device_with_enough_streams_is_left_alone() -> None:
    assert choose_fetch("a", [source("p", "a", ours=3), D0], 3, ()) == Fetch("a", "d0")
    assert choose_fetch("a", [source("d0", "a", draft=True, ours=3)], 3, ()) is None


def test_what_another_is_receiving_comes_last_and_is_waited_for() -> None:
    other = source("p", receiving="a")
    assert choose_fetch("ab", [D0, other], 3, "a") == Fetch("b", "d0")
    assert choose_fetch("a", [D0, other], 3, "a") is None
    assert choose_fetch("a", [D0, other], 3, ()) == Fetch("a", "d0")


def test_nobody_has_it() -> None:
    assert choose_fetch("x", [D0, source("p")], 3, ()) is None
    assert choose_fetch("", [D0], 3, ()) is None


def test_large_ones_go_first_and_each_device_begins_with_another() -> None:
    sizes = {f"{index}": 1000 for index in range(40)} | {"large": 5000}
    orders = [fetch_order(f"v{device}", sizes) for device in range(5)]
    assert all(order[0] == "large" and sorted(order) == sorted(sizes) for order in orders)
    assert len({order[1] for order in orders}) >= 4


def test_five_devices_that_want_the_same_take_little_twice_from_the_draft_node() -> None:
    """Rounds in which each device receives the object that it has chosen."""
    sizes = {f"{index}": 1000 for index in range(50)}
    names = [f"v{index}" for index in range(5)]
    have: dict[str, set[str]] = {name: set() for name in names}
    asked: Counter[str] = Counter()
    while any(len(held) < len(sizes) for held in have.values()):
        receiving: dict[str, set[str]] = {name: set() for name in names}
        for name in names:
            sources = [Source("d0", True, set(sizes), set(), asked["d0"], 0)]
            sources += [
                Source(peer, False, frozenset(have[peer]), receiving[peer], 0, 0)
                for peer in names
                if peer != name
            ]
            wanted = [digest for digest in fetch_order(name, sizes) if digest not in have[name]]
            fetch = choose_fetch(wanted, sources, 3, set(sizes))
            if fetch is not None:
                asked[fetch.address] += 1
                receiving[name].add(fetch.digest)
        for name in names:
            have[name] |= receiving[name]
    assert asked["d0"] == len(sizes)
    assert max(asked[name] for name in names) < 2 * len(sizes)
