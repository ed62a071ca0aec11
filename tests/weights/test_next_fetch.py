"""Who is asked for what."""

from __future__ import annotations

from collections import Counter

from flowedge.weights.fetch.least_rate import LeastRate
from flowedge.weights.fetch.source import (
    FIRST_PAUSE_S,
    MOST_PAUSE_S,
    Fetch,
    Source,
    choose_fetch,
    choose_trusted,
    fetch_order,
    is_straggler,
)


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


def test_a_device_that_broke_off_is_asked_only_for_what_no_other_has() -> None:
    bad, good = source("bad", "ab"), source("good", "a", sending=9)
    bad.put_aside("too slow", now=0.0)
    assert choose_trusted("ab", [bad, good], 3, (), now=1.0) == Fetch("a", "good")
    assert choose_trusted("b", [bad, good], 3, (), now=1.0) == Fetch("b", "bad")
    good.ours = 3
    assert choose_trusted("a", [bad, good], 3, (), now=1.0) is None, "the other is waited for"
    assert choose_trusted("a", [bad, good], 3, (), now=FIRST_PAUSE_S) == Fetch("a", "bad")


def test_a_device_is_put_aside_for_longer_each_time() -> None:
    bad = source("bad", "a")
    for count in range(12):
        bad.put_aside("too slow", now=0.0)
        assert bad.aside_until == min(FIRST_PAUSE_S * 2**count, MOST_PAUSE_S)
    bad.delivered(1000, 1.0)
    assert bad.strikes == 11


def test_a_device_may_break_off_any_number_of_times() -> None:
    bad = source("bad", "a")
    for _ in range(3000):
        bad.put_aside("too slow", now=0.0)
    assert bad.aside_until == MOST_PAUSE_S


def test_a_straggler_is_much_slower_than_another_that_has_the_object() -> None:
    slow, fast = source("slow", "a"), source("fast", "a")
    fast.problem = ""
    fast.delivered(10_000_000, 1.0)
    assert is_straggler("a", slow, 1e6, [slow, fast], 4.0, now=0.0)
    assert not is_straggler("a", slow, 5e6, [slow, fast], 4.0, now=0.0)
    assert not is_straggler("b", slow, 1e6, [slow, fast], 4.0, now=0.0)
    fast.put_aside("it broke off", now=0.0)
    assert not is_straggler("a", slow, 1e6, [slow, fast], 4.0, now=0.0)


def test_only_time_in_which_this_device_waited_counts_for_a_rate() -> None:
    rate = LeastRate(1000.0, window_s=10.0)
    assert all(rate.suffices(1, 0.0) for _ in range(100)), "the disk was slow, not the device"
    assert rate.suffices(9_900, 9.9)
    assert rate.suffices(100, 0.1), "a whole window at the least rate"
    assert not rate.suffices(9_999, 10.0)
    assert (rate.total_bytes, rate.total_s) == (20_099, 20.0)
