"""The draft node against results that are wrong, faults and lost devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    CheckpointError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    NonFiniteError,
    ProtocolError,
)
from flowedge.core.messages import Close, Credit, Fault, Heartbeat, Message, Open, Prune, Segment, Tapped
from flowedge.core.request import Failed, Finished
from flowedge.engine.jobs import DraftBatch
from flowedge.strategies.events import TARGET
from tests.engine.draft_node.draft_node_loop import Loop, Tamper, request


def two_sessions(**changes: Any) -> Loop:
    """Start the session `s`, with changes, and a session `other` beside it."""
    loop = Loop()
    loop.start(request(**changes))
    loop.start(request("other"))
    return loop


def check_other(loop: Loop) -> None:
    """Hold that the session `other` was answered, and that nothing is left of any session."""
    loop.check_finished("other")
    loop.check_empty()


# ------------------------------------------------------------------------------------------ wrong results


def nth_draft_result(n: int, change: Callable[[Segment], Segment]) -> Tamper:
    """Changes the n-th result of session `s` that holds three draft rows or more."""
    seen = [0]

    def tamper(message: Message) -> list[Message]:
        if isinstance(message, Segment) and message.session == "s" and not message.committed:
            seen[0] += message.num_rows >= 3
            if seen[0] == n and message.num_rows >= 3:
                seen[0] += 1
                return [change(message)]
        return [message]

    return tamper


WRONG = {
    "number": (lambda s: replace(s, number=s.number + 1), "came back, but"),
    "number again": (lambda s: replace(s, number=s.number - 1), "came back, but"),
    "epoch ahead": (lambda s: replace(s, epoch=s.epoch + 1), "the link is at"),
    "epoch behind": (lambda s: replace(s, epoch=s.epoch - 1), "the link is at"),
    "width": (lambda s: replace(s, payload=np.zeros((s.num_rows, 2), np.uint64)), r"uint64 \[\d+, 2\], not"),
    "flat": (lambda s: replace(s, payload=s.payload.reshape(-1)), "not uint64"),
    "payload rows": (lambda s: replace(s, payload=s.payload[:-1]), "not uint64"),
    "dtype": (lambda s: replace(s, payload=s.payload.astype(np.float32)), "float32"),
    "positions": (lambda s: replace(s, positions=s.positions + 1), "other rows than were sent"),
    "far positions": (lambda s: replace(s, positions=s.positions + 2**40), "other rows than were sent"),
    "parents": (lambda s: replace(s, parents=s.parents[::-1].copy()), "other rows than were sent"),
    "own parent": (
        lambda s: replace(s, parents=np.append(s.parents[:-1], s.first_row + s.num_rows - 1)),
        "other rows than were sent",
    ),
    "parents short": (lambda s: replace(s, parents=s.parents[:-1]), "parents"),
    "first row": (lambda s: replace(s, first_row=s.first_row + 1), "other rows than were sent"),
    "first row far": (lambda s: replace(s, first_row=2**40), "other rows than were sent"),
    "rows lost": (lambda s: s.take(np.arange(s.num_rows - 1)), "other rows than were sent"),
    "all rows lost": (lambda s: s.take(np.arange(0)), "other rows than were sent"),
    "rows added": (
        lambda s: replace(
            s,
            positions=np.append(s.positions, [9] * 50),
            parents=np.append(s.parents, [s.first_row] * 50),
            payload=np.zeros((s.num_rows + 50, 1), np.uint64),
        ),
        "other rows than were sent",
    ),
    "committed": (lambda s: replace(s, committed=True), "other rows than were sent"),
}


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_result_fails_its_session_and_no_other(kind, nth):
    change, problem = WRONG[kind]
    loop = two_sessions()
    loop.run(nth_draft_result(nth, change))
    error = loop.error()
    assert isinstance(error, ProtocolError)
    with pytest.raises(ProtocolError, match=problem):
        raise error
    assert "segment" in str(error)
    check_other(loop)


@pytest.mark.parametrize("strategy", ["flowspec", "autoregressive"])
@pytest.mark.parametrize("first_row", [1, 2**40, -1])
def test_a_wrong_result_of_the_prompt_fails_its_session(strategy, first_row):
    def tamper(message):
        wrong = isinstance(message, Segment) and message.session == "s" and message.committed
        return [replace(message, first_row=first_row) if wrong else message]

    loop = two_sessions(strategy=strategy)
    loop.run(tamper)
    assert "other rows than were sent" in str(loop.error())
    check_other(loop)


def test_a_result_that_comes_twice_is_refused():
    loop = Loop()
    loop.start(request())
    loop.run(lambda m: [m, m] if isinstance(m, Segment) else [m])
    assert "segment 0 came back, but 1 was due" in str(loop.error())
    loop.check_empty()


def test_a_result_that_was_never_sent_is_refused():
    loop = Loop()
    loop.start(request())
    segment = [loop.node.poll(idle=False, ready=[TARGET])[0].message for _ in range(2)]
    assert isinstance(segment[1], Segment)
    payload = np.zeros((3, 1), np.uint64)
    loop.node.receive(replace(segment[1], payload=payload))
    loop.node.receive(replace(segment[1], payload=payload, number=1))
    loop.run()
    assert "segment 1 came back, but 1 was due" in str(loop.error())


@pytest.mark.parametrize("epoch", [0, 2, 2**40, -1])
def test_a_prune_that_comes_back_out_of_order_is_refused(epoch):
    loop = two_sessions()

    def tamper(message):
        wrong = isinstance(message, Prune) and message.session == "s"
        return [replace(message, epoch=epoch) if wrong else message]

    loop.run(tamper)
    assert f"prune {epoch} came back, but 1 was due" in str(loop.error())
    check_other(loop)


def test_tapped_values_that_were_not_asked_for_are_refused():
    loop = two_sessions()
    loop.run(turns=3)
    loop.node.receive(Tapped("s", 1, np.zeros((1, 1), np.uint64)))
    loop.run()
    assert "from column 1 of a row came; no stage was asked to keep these" in str(loop.error())
    check_other(loop)


def test_messages_of_sessions_that_are_not_there_are_ignored():
    loop = Loop()
    loop.start(request("other"))
    stray = Segment("x", 0, 0, True, 0, np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1)))
    prune = Prune("x", 1, 0, 0, 0, np.zeros(0, np.int64))
    for message in (
        stray,
        prune,
        Tapped("x", 1, np.zeros((1, 1))),
        Credit("x"),
        Close("x"),
        Fault("x", "v", "c", "r"),
        Open("x", 3),
        Heartbeat(1),
    ):
        loop.node.receive(message)
    loop.run()
    loop.check_finished("other")
    assert {output.session for output in loop.outputs} == {"other"}
    loop.check_empty()


# ---------------------------------------------------------------------------------- faults and lost devices


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_request", BadRequestError),
        ("capacity", CapacityError),
        ("checkpoint", CheckpointError),
        ("protocol", ProtocolError),
        ("deadline", DeadlineError),
        ("non_finite", NonFiniteError),
        ("device_lost", DeviceLostError),
        ("device", DeviceError),
        ("something new", DeviceError),
    ],
)
def test_a_fault_of_a_stage_is_the_error_it_names(code, kind):
    loop = two_sessions()
    loop.run(turns=6)
    loop.node.receive(Fault("s", "pi-3", code, "out of luck"))
    loop.node.receive(Fault("s", "pi-3", code, "and again"))
    loop.run()
    error = loop.error()
    assert type(error) is kind
    assert "pi-3" in str(error)
    assert "out of luck" in str(error)
    check_other(loop)


def test_what_a_stage_refuses_reaches_the_client():
    loop = two_sessions(prompt=(1, 99))  # beyond the stage's vocabulary
    loop.run()
    assert isinstance(loop.error(), ProtocolError)
    assert "device v0" in str(loop.error())
    assert "token id" in str(loop.error())
    check_other(loop)


def test_a_lost_device_fails_every_session_at_once():
    loop = Loop()
    for name in ("s", "t", "u"):
        loop.start(request(name))
    loop.run(turns=9)
    loop.node.cancel("u")
    loop.node.device_lost(DeviceLostError("jetson-2", "no sign of life for 3 s"))
    loop.rig.stage.drop_all()
    loop.run()
    for name in ("s", "t"):
        assert isinstance(loop.error(name), DeviceLostError)
        assert loop.error(name).device == "jetson-2"
    assert not any(isinstance(o, Finished | Failed) for o in loop.of("u")), "it had been cancelled"
    loop.rig.pump()
    loop.check_empty()
    loop.answer(request("v"))


def test_a_device_lost_while_a_session_closes_costs_only_the_reports():
    """All tokens have been sent: the client gets its end without the reports of the stages."""
    loop = Loop()
    loop.start(request(max_new_tokens=1))
    loop.run(lambda m: [] if isinstance(m, Close) else [m])
    assert loop.node.load().sessions == 1
    loop.node.device_lost(DeviceLostError("v0", "gone"))
    loop.run()
    ends = [output for output in loop.of("s") if isinstance(output, Finished)]
    assert [end.reason for end in ends] == ["length"]
    assert [report.device for report in ends[0].reports] == ["d0"]
    assert loop.node.load().sessions == 0


def test_a_job_that_fails_ends_its_session():
    loop = two_sessions()
    while not isinstance(job := loop.next_job(), DraftBatch) or not verifies(job, "s"):
        if job is not None:
            loop.finish(job)
        loop.turn(lambda m: [m])
    loop.node.fail(job, DeviceError("d0", "out of memory"))
    loop.run()
    assert isinstance(loop.error(), DeviceError)
    assert len(job.jobs) == 1, "the other session goes on"
    check_other(loop)


def verifies(job: DraftBatch, session: str) -> bool:
    return job.verifies and [each.session for each in job.jobs] == [session]
