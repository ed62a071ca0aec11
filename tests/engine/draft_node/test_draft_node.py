"""The draft node: requests served, cancelled and refused, and the order of its jobs."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError, ContextLengthError
from flowedge.core.messages import Credit, Fault, Segment
from flowedge.core.request import Failed, Finished, Rows
from flowedge.engine.jobs import DropCache, GrowDraft, OpenDraft, sessions_of
from tests.engine.draft_node.draft_node_loop import VOCAB, Loop, request
from tests.engine.exact_model import PlainModel, token_of
from tests.support.seams import draft_sessions, waits_for_thread


@pytest.mark.parametrize("strategy", ["auto", "flowspec", "autoregressive"])
@pytest.mark.parametrize("prompt", [(1,), (1, 2, 3), (3, 2, 1, 0, 3, 2, 1)])
def test_the_loop_generates_what_the_plain_model_does(strategy, prompt):
    loop, wanted = Loop(), request(strategy=strategy, prompt=prompt)
    loop.answer(wanted)
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
        (request(max_new_tokens=96), ContextLengthError, "5 prompt tokens and 96 new ones make 101"),
        (request(prompt=(1,) * 200), ContextLengthError, "the model takes 100"),
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
    assert loop.node.load().sessions == 1
    loop.run()
    assert {m.session for m in loop.sent} == {"other"}
    loop.check_finished("other")
    loop.check_empty()


def test_the_longest_sequence_that_fits_is_served():
    loop, wanted = Loop(max_positions=40), request(max_new_tokens=35)
    loop.answer(wanted)


def test_drafting_strategies_need_a_drafter():
    loop = Loop(has_drafter=False)
    with pytest.raises(BadRequestError, match="needs a drafter"):
        loop.start(request())
    wanted = request(strategy="autoregressive")
    loop.answer(wanted)
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
            assert not isinstance(loop.session_jobs[-1], GrowDraft)
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
    shares = [sum(name in sessions_of(job) for job in loop.jobs) for name in names]
    assert min(shares) > 0.6 * max(shares)


def test_eos_ends_a_session_in_the_middle_of_what_was_accepted():
    plain = PlainModel(1, VOCAB).generate((1, 2, 3, 0, 1), 12)
    for eos in set(plain):
        loop, wanted = Loop(), request(eos=frozenset([eos]))
        loop.answer(wanted)
        assert loop.of("s")[-1].reason == "eos"
        assert loop.tokens("s")[-1] == eos
        loop.check_empty()
