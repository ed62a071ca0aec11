"""Which requests are asked, and when: all from the seed, a closed loop, static batches, Poisson arrivals."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from flowedge.core.sampling import SamplingParams
from flowedge_testbed.load.arrivals import Arrival, ClosedLoop, PoissonArrivals, RequestList, StaticBatches


def requests(seed: int = 3, temperature: float = 1.0) -> RequestList:
    sampling = SamplingParams(temperature, top_p=0.9, seed=seed)
    return RequestList(tuple((number,) for number in range(5)), sampling, (10, 20))


def test_requests_follow_from_the_seed_alone() -> None:
    first = [requests().request(number) for number in range(40)]
    assert first == [requests().request(number) for number in range(40)]
    assert first[7] == requests().request(7), "without those before"
    assert [each.prompt for each in first] != [requests(4).request(n).prompt for n in range(40)]
    for turn in range(0, 40, 5):
        assert sorted(each.prompt for each in first[turn : turn + 5]) == [(n,) for n in range(5)]
    assert len({each.sampling.seed for each in first}) == 40
    assert {each.sampling.top_p for each in first} == {0.9}
    assert {requests(temperature=0).request(n).sampling.seed for n in range(40)} == {0}
    lengths = [requests().request(number).max_new_tokens for number in range(400)]
    assert (min(lengths), max(lengths)) == (10, 20)


def test_a_closed_loop_has_as_many_requests_as_clients() -> None:
    loop = ClosedLoop(requests(), 3, 0.0)
    assert loop.first() == [Arrival(number, 0.0, 0.0) for number in range(3)]
    assert loop.ended(1, 2.5) == [Arrival(3, 2.5, 2.5)]
    assert loop.ended(3, 2.5) == [Arrival(4, 2.5, 2.5)]
    assert loop.begun(Arrival(4, 2.5, 2.5)) == []


def test_clients_think_between_answers() -> None:
    loop = ClosedLoop(requests(), 1, 10.0)
    (arrival,) = loop.ended(0, 1.0)
    assert arrival.asked == arrival.begins == 1.0 + 10.0 * requests().request(arrival.number).pause


def test_a_static_batch_begins_when_all_of_the_last_has_ended() -> None:
    batches = StaticBatches(requests(), 3, 0.0)
    assert len(batches.first()) == 3
    assert batches.ended(2, 1.0) == []
    assert batches.ended(0, 4.0) == []
    assert batches.ended(1, 9.0) == [Arrival(3, 1.0, 9.0), Arrival(4, 4.0, 9.0), Arrival(5, 9.0, 9.0)]
    assert batches.ended(5, 12.0) == []


def test_poisson_arrivals_come_from_the_seed_at_their_rate() -> None:
    def times(seed: int, per_s: float) -> list[float]:
        arrivals = PoissonArrivals(requests(seed), per_s)
        (arrival,) = arrivals.first()
        found = [arrival.asked]
        for _ in range(3999):
            assert arrivals.ended(arrival.number, 1e9) == []
            (arrival,) = arrivals.begun(arrival)
            assert arrival.begins == arrival.asked
            found.append(arrival.asked)
        return found

    slow = times(3, 0.5)
    assert slow == times(3, 0.5)
    assert slow != times(4, 0.5)
    assert times(3, 5.0) == pytest.approx([time / 10 for time in slow]), "the same pattern at every rate"
    gaps = [after - before for before, after in pairwise(slow)]
    assert fmean(gaps) == pytest.approx(2.0, rel=0.05)
    assert fmean(gap > 2.0 for gap in gaps) == pytest.approx(0.368, abs=0.03), "exponential"
