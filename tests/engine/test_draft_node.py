"""The draft node against results that are wrong, faults, lost devices and requests it cannot serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    CheckpointError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.messages import Close, Credit, Fault, Heartbeat, Message, Open, Prune, Segment
from flowedge.core.request import Failed, Finished, Output, Request, Rows, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node import DraftNode
from flowedge.engine.draft_session import DraftNodeSpec
from flowedge.engine.jobs import DropCache, GrowDraft, OpenDraft, Verify
from flowedge.strategies.registry import make_strategy
from tests.engine.exact_model import ExactHead, PlainModel, token_of
from tests.engine.histories import NoText
from tests.engine.rig import Rig
from tests.support.seams import draft_sessions, is_empty, waits_for_thread

VOCAB = 4
SMALL = {
    "tree_nodes": 12,
    "depth": 3,
    "top_k": 3,
    "segment_rows": 4,
    "expand_nodes": 8,
    "expand_depth": 2,
    "deepen_nodes": 3,
    "deepen_layers": 1,
    "max_draft_rows": 30,
}
Tamper = Callable[[Message], list[Message]]


def request(session: str = "s", strategy: str = "flowspec", **changes) -> Request:
    values = {
        "session": session,
        "prompt": (1, 2, 3, 0, 1),
        "sampling": SamplingParams(),
        "max_new_tokens": 12,
        "strategy": strategy,
        "strategy_options": SMALL if strategy in ("flowspec", "naive_pp") else {},
    }
    return Request(**{**values, **changes})


class Loop:
    """A draft node and one stage, with nothing between them but what a test does to messages.

    Attributes:
        back: what the node got from the stage; sent: what it sent in-band; jobs: what it computed.
    """

    def __init__(self, **spec) -> None:
        values = {"width": 1, "dtype": "uint64", "prefill_rows": 3, "max_positions": 1000, **spec}
        self.node = DraftNode(
            "d0",
            DraftNodeSpec(**values),
            lambda r: make_strategy(r.strategy, r.strategy_options),
            NoText,
        )
        self.head = ExactHead(VOCAB, np.random.default_rng(3))
        self.rig = Rig()
        self.outputs: list[Output] = []
        self.sent: list[Message] = []
        self.back: list[Message] = []
        self.jobs: list = []

    def start(self, wanted: Request) -> None:
        self.node.start(self.node.prepare(wanted))

    def run(self, tamper: Tamper = lambda message: [message], turns: int = 10_000) -> None:
        """Let messages and jobs go on until nothing moves, or for some turns."""
        for _ in range(turns):
            if not self.turn(tamper):
                return

    def turn(self, tamper: Tamper) -> bool:
        node, moved = self.node, False
        if (job := node.next_job()) is not None:
            self.jobs.append(job)
            node.finish(job, self.head.run(job))
            moved = True
        back: list[Message] = []
        while (message := node.next_express()) is not None:
            back += self.rig.receive(message, express=True)
        if (message := node.next_outbound()) is not None:
            self.sent.append(message)
            back += self.rig.receive(message)
            moved = True
        back += self.rig.upstream
        self.rig.upstream.clear()
        for message in back:
            for arriving in tamper(message):
                self.back.append(arriving)
                node.receive(arriving)
        while (output := node.next_output()) is not None:
            self.outputs.append(output)
        return moved or bool(back)

    def of(self, session: str) -> list[Output]:
        return [output for output in self.outputs if output.session == session]

    def tokens(self, session: str) -> list[int]:
        return [t for output in self.of(session) if isinstance(output, Tokens) for t in output.token_ids]

    def error(self, session: str = "s") -> FlowEdgeError:
        """The one error the session ended with."""
        ends = [o for o in self.of(session) if not isinstance(o, Tokens)]
        assert len(ends) == 1, ends
        assert isinstance(ends[0], Failed)
        assert self.of(session)[-1] is ends[0], "something came out after the end"
        return ends[0].error

    def check_finished(self, session: str, wanted: Request | None = None) -> None:
        wanted = wanted or request(session)
        assert isinstance(self.of(session)[-1], Finished)
        plain = PlainModel(1, VOCAB).generate(wanted.prompt, wanted.max_new_tokens, wanted.eos)
        assert self.tokens(session) == plain

    def check_empty(self) -> None:
        assert self.node.num_sessions == 0
        assert is_empty(self.node)
        assert not self.head.open
        assert self.node.next_job() is None
        assert self.node.next_outbound() is None
        self.rig.check_empty()


@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3), (3, 2, 1, 0, 3, 2, 1)])
def test_the_loop_generates_what_the_plain_model_does(strategy, prompt):
    loop, wanted = Loop(), request(strategy=strategy, prompt=prompt)
    loop.start(wanted)
    loop.run()
    loop.check_finished("s", wanted)
    finished = loop.of("s")[-1]
    assert finished.reason == "length"
    assert [report.device for report in finished.reports] == ["d0", "v0"]
    loop.check_empty()


@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3), (3, 2, 1, 0, 3, 2, 1)])
def test_a_request_for_rows_gets_those_of_its_prompt_alone(prompt):
    loop = Loop(max_positions=len(prompt))
    loop.start(request(strategy="autoregressive", prompt=prompt, max_new_tokens=0, rows_only=True))
    loop.start(request("t", strategy="autoregressive", prompt=prompt, max_new_tokens=0, rows_only=True))
    loop.run()
    for session in "st":
        *rows, finished = loop.of(session)
        assert finished.reason == "rows"
        assert all(isinstance(each, Rows) for each in rows)
        hidden = np.concatenate([each.payload for each in rows])[:, 0]
        drawn = [token_of(int(row), length, VOCAB) for length, row in enumerate(hidden, 1)]
        expected = [PlainModel(1, VOCAB).generate(prompt[:n], 1)[0] for n in range(1, len(prompt) + 1)]
        assert drawn == expected
    assert not loop.jobs
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
    loop = Loop()
    loop.start(request())
    loop.start(request("other"))
    loop.run(nth_draft_result(nth, change))
    error = loop.error()
    assert isinstance(error, ProtocolError)
    with pytest.raises(ProtocolError, match=problem):
        raise error
    assert "segment" in str(error)
    loop.check_finished("other")
    loop.check_empty()


@pytest.mark.parametrize("strategy", ["flowspec", "autoregressive"])
@pytest.mark.parametrize("first_row", [1, 2**40, -1])
def test_a_wrong_result_of_the_prompt_fails_its_session(strategy, first_row):
    def tamper(message):
        wrong = isinstance(message, Segment) and message.session == "s" and message.committed
        return [replace(message, first_row=first_row) if wrong else message]

    loop = Loop()
    loop.start(request(strategy=strategy))
    loop.start(request("other"))
    loop.run(tamper)
    assert "other rows than were sent" in str(loop.error())
    loop.check_finished("other")
    loop.check_empty()


def test_a_result_that_comes_twice_is_refused():
    loop = Loop()
    loop.start(request())
    loop.run(lambda m: [m, m] if isinstance(m, Segment) else [m])
    assert "segment 0 came back, but 1 was due" in str(loop.error())
    loop.check_empty()


def test_a_result_that_was_never_sent_is_refused():
    loop = Loop()
    loop.start(request())
    segment = loop.node.next_outbound(), loop.node.next_outbound()
    assert isinstance(segment[1], Segment)
    payload = np.zeros((3, 1), np.uint64)
    loop.node.receive(replace(segment[1], payload=payload))
    loop.node.receive(replace(segment[1], payload=payload, number=1))
    loop.run()
    assert "segment 1 came back, but 1 was due" in str(loop.error())


@pytest.mark.parametrize("epoch", [0, 2, 2**40, -1])
def test_a_prune_that_comes_back_out_of_order_is_refused(epoch):
    loop = Loop()
    loop.start(request())
    loop.start(request("other"))

    def tamper(message):
        wrong = isinstance(message, Prune) and message.session == "s"
        return [replace(message, epoch=epoch) if wrong else message]

    loop.run(tamper)
    assert f"prune {epoch} came back, but 1 was due" in str(loop.error())
    loop.check_finished("other")
    loop.check_empty()


def test_messages_of_sessions_that_are_not_there_are_ignored():
    loop = Loop()
    loop.start(request("other"))
    stray = Segment("x", 0, 0, True, 0, np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1)))
    prune = Prune("x", 1, 0, 0, 0, np.zeros(0, np.int64))
    for message in (
        stray,
        prune,
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
        ("device_lost", DeviceLostError),
        ("device", DeviceError),
        ("something new", DeviceError),
    ],
)
def test_a_fault_of_a_stage_is_the_error_it_names(code, kind):
    loop = Loop()
    loop.start(request())
    loop.start(request("other"))
    loop.run(turns=6)
    loop.node.receive(Fault("s", "pi-3", code, "out of luck"))
    loop.node.receive(Fault("s", "pi-3", code, "and again"))
    loop.run()
    error = loop.error()
    assert type(error) is kind
    assert "pi-3" in str(error)
    assert "out of luck" in str(error)
    loop.check_finished("other")
    loop.check_empty()


def test_what_a_stage_refuses_reaches_the_client():
    loop = Loop()
    loop.start(request(prompt=(1, 99)))  # beyond the stage's vocabulary
    loop.start(request("other"))
    loop.run()
    assert isinstance(loop.error(), ProtocolError)
    assert "device v0" in str(loop.error())
    assert "token id" in str(loop.error())
    loop.check_finished("other")
    loop.check_empty()


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
    loop.start(request("v"))
    loop.run()
    loop.check_finished("v")


def test_a_device_lost_while_a_session_closes_costs_only_the_reports():
    """All tokens have been sent: the client gets its end without the reports of the stages."""
    loop = Loop()
    loop.start(request(max_new_tokens=1))
    loop.run(lambda m: [] if isinstance(m, Close) else [m])
    assert loop.node.num_sessions == 1
    loop.node.device_lost(DeviceLostError("v0", "gone"))
    loop.run()
    ends = [output for output in loop.of("s") if isinstance(output, Finished)]
    assert [end.reason for end in ends] == ["length"]
    assert [report.device for report in ends[0].reports] == ["d0"]
    assert loop.node.num_sessions == 0


def test_a_job_that_fails_ends_its_session():
    loop = Loop()
    loop.start(request())
    loop.start(request("other"))
    while not isinstance(job := loop.node.next_job(), Verify) or job.session != "s":
        if job is not None:
            loop.node.finish(job, loop.head.run(job))
        loop.turn(lambda m: [m])
    loop.node.fail(job, DeviceError("d0", "out of memory"))
    loop.run()
    assert isinstance(loop.error(), DeviceError)
    loop.check_empty()


# ---------------------------------------------------------------------------------------------- cancelling


@pytest.mark.parametrize("turns", [0, 1, 3, 6, 10, 15])
@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
def test_a_cancelled_session_says_nothing_more_and_leaves_nothing(turns, strategy):
    loop = Loop()
    loop.start(request(strategy=strategy, max_new_tokens=60))
    loop.start(request("other"))
    loop.run(turns=turns)
    before = len(loop.of("s"))
    loop.node.cancel("s")
    loop.node.cancel("s")
    loop.node.cancel("never there")
    loop.run()
    assert len(loop.of("s")) == before
    assert not any(isinstance(o, Failed | Finished) for o in loop.of("s"))
    loop.check_finished("other")
    loop.check_empty()


def test_a_fault_of_a_cancelled_session_is_not_told():
    loop = Loop()
    loop.start(request())
    loop.run(turns=5)
    loop.node.cancel("s")
    loop.node.receive(Fault("s", "v0", "protocol", "late"))
    loop.run()
    assert not any(isinstance(o, Failed) for o in loop.of("s"))
    loop.check_empty()


# ------------------------------------------------------------------------------------------ refused up front


@pytest.mark.parametrize(
    ("bad", "kind", "problem"),
    [
        (request(max_new_tokens=96), CapacityError, "5 prompt tokens and 96 new ones make 101"),
        (request(prompt=(1,) * 200), CapacityError, "the model takes 100"),
        (request(prompt=()), BadRequestError, "no tokens"),
        (request(max_new_tokens=0), BadRequestError, "max_new_tokens"),
        (request(max_new_tokens=-3), BadRequestError, "max_new_tokens"),
        (request(strategy="magic"), BadRequestError, "magic"),
        (request(strategy_options={"tree_nodes": 0}), BadRequestError, "tree_nodes"),
        (request("other"), BadRequestError, "exists already"),
    ],
)
def test_a_request_that_cannot_be_served_opens_nothing(bad, kind, problem):
    loop = Loop(max_positions=100)
    loop.start(request("other"))
    with pytest.raises(BadRequestError, match=problem) as raised:
        loop.start(bad)
    assert type(raised.value) is kind
    assert loop.node.num_sessions == 1
    loop.run()
    assert {m.session for m in loop.sent} == {"other"}
    loop.check_finished("other")
    loop.check_empty()


def test_the_longest_sequence_that_fits_is_served():
    loop, wanted = Loop(max_positions=40), request(max_new_tokens=35)
    loop.start(wanted)
    loop.run()
    loop.check_finished("s", wanted)


def test_drafting_strategies_need_a_drafter():
    loop = Loop(has_drafter=False)
    with pytest.raises(BadRequestError, match="needs a drafter"):
        loop.start(request())
    wanted = request(strategy="autoregressive")
    loop.start(wanted)
    loop.run()
    loop.check_finished("s", wanted)
    assert not any(isinstance(job, OpenDraft | DropCache) for job in loop.jobs), "it has no use for a drafter"


# ------------------------------------------------------------------------------------------ jobs and credits


def test_verifying_goes_before_drafting():
    loop = Loop()
    loop.start(request())
    loop.start(request("other"))
    both = 0
    for _ in range(200):
        waits = [waits_for_thread(session) for session in draft_sessions(loop.node).values()]
        waiting, growing = any(verify for verify, _ in waits), any(draft for _, draft in waits)
        before = len(loop.jobs)
        if not loop.turn(lambda m: [m]):
            break
        if waiting and growing and len(loop.jobs) > before and not isinstance(loop.jobs[-1], OpenDraft):
            both += 1
            assert not isinstance(loop.jobs[-1], GrowDraft)
    assert both > 5, "the test has not met the case"


@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
def test_a_segment_is_sent_for_each_credit_and_no_more(strategy):
    """The stage keeps its credits back for a while: at most one more segment than were granted is out."""
    loop, wanted = Loop(), request(strategy=strategy, max_new_tokens=30)
    kept = []

    def tamper(message):
        if isinstance(message, Credit):
            kept.append(message)
            return []
        return [message]

    loop.start(wanted)
    granted = 1
    while not any(isinstance(o, Finished) for o in loop.outputs):
        loop.run(tamper)
        assert sum(isinstance(m, Segment) for m in loop.sent) <= granted
        if not any(isinstance(o, Finished) for o in loop.outputs):
            loop.node.receive(kept.pop())
            granted += 1
    loop.check_finished("s", wanted)


def test_the_prompt_goes_out_a_chunk_for_each_credit():
    loop = Loop(prefill_rows=2)
    loop.start(request())
    loop.run(lambda m: [] if isinstance(m, Credit) else [m])
    assert [m.num_rows for m in loop.sent if isinstance(m, Segment)] == [2]
    loop.node.receive(Credit("s"))
    loop.node.receive(Credit("s"))
    loop.run(lambda m: [] if isinstance(m, Credit) else [m])
    assert [m.num_rows for m in loop.sent if isinstance(m, Segment)] == [2, 2, 1]


def test_sessions_take_turns_in_the_lane():
    loop = Loop()
    names = ["a", "b", "c"]
    for name in names:
        loop.start(request(name, max_new_tokens=40))
    loop.run(turns=150)
    shares = [sum(job.session == name for job in loop.jobs) for name in names]
    assert min(shares) > 0.6 * max(shares)


def test_eos_ends_a_session_in_the_middle_of_what_was_accepted():
    plain = PlainModel(1, VOCAB).generate((1, 2, 3, 0, 1), 12)
    for eos in set(plain):
        loop, wanted = Loop(), request(eos=frozenset([eos]))
        loop.start(wanted)
        loop.run()
        loop.check_finished("s", wanted)
        assert loop.of("s")[-1].reason == "eos"
        assert loop.tokens("s")[-1] == eos
        loop.check_empty()


def test_sessions_beyond_the_limit_are_refused_until_one_has_ended():
    loop = Loop(max_sessions=1)
    loop.start(request("first"))
    with pytest.raises(CapacityError, match="1 sessions are open on device d0 already"):
        loop.start(request("second"))
    loop.run()
    loop.start(request("second"))
