"""A draft node opens waiting sessions when others end, however these end, and gives up on those it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowedge.core.errors import CapacityError, DeviceLostError
from flowedge.core.messages import Close, Open
from flowedge.core.request import Failed, Finished, Opened, Tokens, Waiting
from flowedge.engine.draft_node.cache_budget import AdmissionLimits, CacheBudget
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.session_admission import SessionAdmission
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import machine_pipeline
from flowedge.planning.virtual_pipeline import TimedOutput, VirtualPipeline
from tests.engine.draft_node.draft_node_loop import VOCAB, Loop, request
from tests.engine.exact_model import ExactHead, ExactStage, PlainModel
from tests.engine.histories import NoText, run_history
from tests.engine.rig import Rig

ONE = AdmissionLimits(sessions=1)


def test_a_waiting_session_is_opened_when_another_has_ended_and_answers_as_alone() -> None:
    loop = Loop(ONE)
    for name in ("first", "second", "third"):
        loop.start(request(name))
    loop.run()
    assert [output for output in loop.outputs if isinstance(output, Waiting | Opened)] == [
        Waiting("second", 1, 1.0),
        Waiting("third", 2, 1.0),
        Opened("second", 0.0),
        Waiting("third", 1, 1.0),
        Opened("third", 0.0),
    ]
    for name in ("first", "second", "third"):
        loop.check_finished(name)
    loop.check_empty()


def test_the_end_of_a_session_goes_before_the_next_session_to_every_stage() -> None:
    """So a stage with room for one session never sees two."""
    loop = Loop(ONE)
    loop.start(request("first"))
    loop.start(request("second"))
    loop.run(turns=4)
    loop.node.cancel("first")
    loop.run()
    order = [type(m).__name__ + m.session for m in loop.sent if isinstance(m, Open | Close)]
    assert order == ["Openfirst", "Closefirst", "Opensecond", "Closesecond"]
    loop.check_finished("second")


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_waiting_session_can_be_cancelled_and_failed(end: str) -> None:
    loop = Loop(ONE)
    for name in ("first", "second", "third"):
        loop.start(request(name))
    error = CapacityError("enough")
    if end == "cancel":
        loop.node.cancel("second")
    else:
        loop.node.fail_session("second", error)
    loop.run()
    failed = [output for output in loop.of("second") if isinstance(output, Failed)]
    assert failed == ([] if end == "cancel" else [Failed("second", error)])
    assert not any(isinstance(message, Open) and message.session == "second" for message in loop.sent)
    loop.check_finished("third")
    loop.check_empty()


def test_a_lost_device_ends_those_that_wait_as_well() -> None:
    loop = Loop(ONE)
    loop.start(request("first"))
    loop.start(request("second"))
    loop.run(turns=3)
    loop.node.device_lost(DeviceLostError("v1", "unplugged"))
    loop.run(turns=1)
    for name in ("first", "second"):
        last = loop.of(name)[-1]
        assert isinstance(last, Failed) and isinstance(last.error, DeviceLostError)
    assert not loop.node.admission.waiting


def test_rows_of_all_sessions_together_stay_within_those_of_the_smallest_stage() -> None:
    """On a stage that would answer an Open beyond its rows with a Fault."""
    room = Loop().node.prepare(request("x")).capacity
    loop = Loop(AdmissionLimits(total_rows=2 * room + 1))
    loop.rig = Rig(max_total_capacity=2 * room + 1)
    names = [f"s{number}" for number in range(7)]
    for name in names:
        loop.start(request(name))
    assert len(loop.node.admission.waiting) == 5
    loop.run()
    for name in names:
        loop.check_finished(name)
    loop.check_empty()


def virtual(num_stages: int, limits: AdmissionLimits, **room: int) -> VirtualPipeline:
    """A pipeline of exact stages, the last of which has less room than the others."""
    rooms = [{}] * (num_stages - 1) + [room]
    stages = [
        (StageSpec(is_first=not index, width=1, vocab_size=VOCAB, dtype="uint64", **rows), ExactStage(index))
        for index, rows in enumerate(rooms)
    ]
    spec = DraftNodeSpec(width=1, dtype="uint64", prefill_rows=3, max_positions=1000, num_stages=num_stages)
    head = ExactHead(VOCAB, np.random.default_rng(3))
    return machine_pipeline(spec, head, stages, FixedCosts(), make_text=NoText, limits=limits)


def outputs_of(pipeline: VirtualPipeline, session: str) -> list[TimedOutput]:
    return [timed for timed in pipeline.outputs if timed.output.session == session]


def test_the_virtual_driver_opens_waiting_sessions_within_the_room_of_the_last_stage() -> None:
    capacity = Loop().node.prepare(request("x")).capacity
    pipeline = virtual(3, AdmissionLimits(queue_s=1000.0), max_total_capacity=2 * capacity + 1)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        pipeline.start(request(name))
    most = 0
    while pipeline.step():
        most = max(most, *(stage.load().sessions for stage in pipeline.stages))
    assert most == 2
    plain = PlainModel(3, VOCAB).generate(request().prompt, 12)
    for name in names:
        outputs = [timed.output for timed in outputs_of(pipeline, name)]
        assert isinstance(outputs[-1], Finished)
        assert [t for each in outputs if isinstance(each, Tokens) for t in each.token_ids] == plain
    waits = [each.output.waited_s for each in pipeline.outputs if isinstance(each.output, Opened)]
    assert waits == sorted(waits) and len(waits) == 4 and waits[0] > 0
    assert pipeline.draft_node.admission.held_rows == 0


def test_the_virtual_driver_refuses_at_the_deadline() -> None:
    pipeline = virtual(2, AdmissionLimits(sessions=1, queue_s=0.5))
    pipeline.start(request("first", max_new_tokens=60))
    pipeline.start(request("second"), 0.25)
    pipeline.run()
    [_, refused] = outputs_of(pipeline, "second")
    assert refused.time == 0.75
    assert isinstance(refused.output, Failed) and isinstance(refused.output.error, CapacityError)
    assert isinstance(outputs_of(pipeline, "first")[-1].output, Finished)


WAITING = (34, 259, 264, 294, 314, 364)  # chosen among the first


def test_sessions_wait_in_these_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    take = SessionAdmission.take_outputs

    def taken(self: SessionAdmission) -> Any:
        outputs = take(self)
        waits.extend(output.waited_s for output in outputs if isinstance(output, Opened))
        return outputs

    monkeypatch.setattr(SessionAdmission, "take_outputs", taken)
    for seed in WAITING:
        run_history(seed)
    assert len(waits) > 15 and sum(wait > 0 for wait in waits) > 15


def opened_before_the_end_of_the_other(patch: pytest.MonkeyPatch) -> None:
    close: Callable[..., None] = vars(DraftNode)["_close"]

    def close_late(self: DraftNode, session: DraftSession, *last: Any, **how: Any) -> None:
        self.admission.release(session.name, 0.0)
        self.admit()
        close(self, session, *last, **how)

    patch.setattr(DraftNode, "_close", close_late)


def room_never_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionAdmission, "release", lambda *_: None)


def one_session_too_many(patch: pytest.MonkeyPatch) -> None:
    fits: Callable[..., bool] = CacheBudget.fits

    def fits_more(self: CacheBudget, claim: Any, limits: Any) -> bool:
        return fits(self, claim, type(limits)(sessions=limits.sessions + 1))

    patch.setattr(CacheBudget, "fits", fits_more)


@pytest.mark.parametrize(
    "bug", [opened_before_the_end_of_the_other, room_never_given_back, one_session_too_many]
)
def test_a_bug_in_admission_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in WAITING:
            run_history(seed)
