"""The room for calls, without a server."""

from __future__ import annotations

import random

import pytest

from flowedge.cluster.certificate_role import CALLERS
from flowedge.cluster.tls.call_admission import CallCounts, Caller, CountedCall
from flowedge.cluster.tls.call_limits import RULES, CallLimits, MethodRule, rule_of, rules_for
from flowedge.core.errors import CapacityError

PLAIN = MethodRule()
STREAM = MethodRule(for_pipelines=True)
ADMIN = Caller("chief", "a:1", "chief (admin)", is_admin=True)


def client(number: int) -> Caller:
    return Caller(f"client{number}", "b:1", f"client{number} (client)", is_device=False)


def device(number: int) -> Caller:
    return Caller(f"device{number}", "c:1", f"device{number} (agent)")


def call(
    caller: Caller, rule: MethodRule = PLAIN, method: str = "/m", *, streaming: bool = False
) -> CountedCall:
    return CountedCall(method, caller, rule, streaming)


def filled(counts: CallCounts, *calls: CountedCall) -> int:
    """Enter calls of these kinds in turn until all are refused; return how many were taken."""
    taken, refused = 0, 0
    while refused < len(calls):
        refused = 0
        for each in calls:
            try:
                counts.enter(each)
                taken += 1
            except CapacityError:
                refused += 1
    return taken


def test_clients_leave_the_reserve_to_pipelines_and_these_leave_some_to_admins() -> None:
    counts = CallCounts(CallLimits(calls=100, reserved_calls=40, calls_per_caller=30))
    assert filled(counts, *(call(client(number)) for number in range(9))) == 60
    assert filled(counts, *(call(device(number), STREAM) for number in range(9))) == 30
    with pytest.raises(CapacityError, match="90 calls open here is the maximum"):
        counts.enter(call(device(10), STREAM))
    assert filled(counts, call(ADMIN)) == 10
    assert counts.total == 100


def test_a_client_cannot_use_the_reserve_by_a_method_of_pipelines() -> None:
    counts = CallCounts(CallLimits(calls=20, reserved_calls=8, calls_per_caller=100))
    assert filled(counts, call(client(1), STREAM)) == 12
    counts.enter(call(device(1), STREAM))


def test_a_caller_has_a_share_of_its_own() -> None:
    counts = CallCounts(CallLimits(calls_per_caller=3, streams_per_peer=2))
    assert filled(counts, call(client(1))) == 3
    with pytest.raises(CapacityError, match="you have 3 calls open here"):
        counts.enter(call(client(1)))
    counts.enter(call(client(2)))
    assert filled(counts, call(device(1), STREAM, streaming=True)) == 2
    assert filled(counts, call(device(1), STREAM)) == 1
    assert filled(counts, call(device(1))) == 3  # beside those for pipelines
    few = MethodRule(per_caller=1, of_clients=2)
    other = CallCounts(CallLimits())
    assert filled(other, *(call(client(number), few) for number in range(5))) == 2
    other.enter(call(ADMIN, few))


def test_calls_that_end_make_room() -> None:
    """After any history, nothing is left of calls that have ended."""
    choice = random.Random(5)
    counts = CallCounts(CallLimits(calls=12, calls_per_caller=4, reserved_calls=4, streams_per_peer=2))
    running: list[CountedCall] = []
    for _ in range(2000):
        if running and choice.random() < 0.5:
            counts.leave(running.pop(choice.randrange(len(running))))
            continue
        rule, streaming = choice.choice([PLAIN, STREAM]), choice.random() < 0.3
        who = choice.choice([client(1), client(2), device(1), ADMIN])
        new = call(who, rule, choice.choice("mn"), streaming=streaming)
        try:
            counts.enter(new)
        except CapacityError:
            continue
        running.append(new)
        assert counts.total == len(running) <= 12
    while running:
        counts.leave(running.pop())
    assert filled(counts, call(client(1)), call(client(2)), call(client(3))) == 8


def test_every_method_has_a_rule() -> None:
    assert CALLERS.keys() <= RULES.keys()
    assert rule_of(RULES, "/unknown/Method").request_bytes == min(
        rule.request_bytes for rule in RULES.values()
    )
    rules = rules_for(prompt_bytes=1000, prompt_tokens=300, generations=64, sessions_per_caller=9, sending=16)
    generate = rules["/flowedge.v1.Generation/Generate"]
    assert generate.request_bytes > 1500
    assert (generate.per_caller, generate.of_clients) == (9, 60)
    assert rules["/flowedge.v1.Weights/Read"].of_clients == 8
