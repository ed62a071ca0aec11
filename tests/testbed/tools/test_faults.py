"""The tool that has devices fail under running answers: what it draws, what it says, and a run of it."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest

from testbed.tools.faults import answers, streams
from testbed.tools.faults.__main__ import main
from testbed.tools.faults.answers import HANG_S, Answer, Askers, Expected, ask_gateway
from testbed.tools.faults.schedule import LASTS, InjectedFault, drawn_faults
from testbed.tools.faults.verdict import Happened, sound, table, verdicts
from tests.support.processes import CLI

DEVICES = ("d0", "v1", "v2")
GOOD = Answer(0.0, 9.0, (), "", equal=True)
KILL = Happened(InjectedFault("kill", "v1", 1.0, 0.5), 10.0, 11.0)
LINK = Happened(InjectedFault("link", "v2", 5.0, 0.5), 20.0, 25.0)


def test_a_seed_gives_the_same_faults_of_every_kind_and_device() -> None:
    every = len(LASTS) * len(DEVICES)
    first, again = (list(itertools.islice(drawn_faults(list(LASTS), DEVICES, 7), every)) for _ in range(2))
    assert first == again
    assert {(fault.kind, fault.device) for fault in first} == set(itertools.product(LASTS, DEVICES))


def test_what_happens_is_put_down_to_the_fault_before() -> None:
    lost = Answer(9.0, 12.0, ((9.5, 2.5),), "device v1: gone", equal=False)
    changed = Answer(9.0, 30.0, ((21.0, 4.0),), "", equal=False)
    kill, link = verdicts([KILL, LINK], [GOOD, lost, changed])
    assert (kill.faults, kill.pauses, kill.lost, kill.different) == (1, (2.5,), 1, 0)
    assert (link.faults, link.pauses, link.lost, link.different) == (1, (4.0,), 0, 1)
    assert "| kill | 1 | 1 | 2.5 | 2.5 | 2.5 | 2.5 | 1 | 0 |" in table([kill, link])
    assert "| all | 2 | 2 | 4.0 | 4.0 | 4.0 | 4.0 | 1 | 1 |" in table([kill, link])


@pytest.mark.parametrize(
    "bad",
    [
        Answer(0.0, 9.0, (), "device v1: gone", equal=True),
        Answer(0.0, 9.0, (), "", equal=False),
        Answer(0.0, 99.0, ((1.0, HANG_S + 1),), "", equal=True),
    ],
)
def test_one_bad_answer_is_enough(bad: Answer) -> None:
    assert sound([GOOD])
    assert not sound([GOOD, bad])


def test_a_run_without_answers_proves_nothing() -> None:
    assert not sound([])


def test_a_stream_that_breaks_off_is_a_lost_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(streams, "pieces", refused)
    answer = ask_gateway("127.0.0.1:1", Expected("Hi", {}, (), "Hello"))
    assert answer.error == "by HTTP: ConnectionResetError: reset by peer"
    assert not answer.equal


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_that_crashes_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Answer:
        raise RuntimeError("a bug")

    monkeypatch.setattr(answers, "ask_gateway", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    askers = Askers("127.0.0.1:1", "127.0.0.1:1", (), [Expected("Hi", {}, (), "")], 2, 0)
    monkeypatch.setattr(askers, "_run", lambda seed: None)
    askers.__post_init__()
    askers.start()
    assert askers.end()
    assert askers.crashes == ["RuntimeError: a bug"]


PROOF = (pytest.mark.proof, pytest.mark.timeout(1200))


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("faults", "kinds"),
    [
        ("2", "kill"),
        pytest.param("20", ",".join(LASTS), marks=(pytest.mark.proof, pytest.mark.timeout(1200))),
    ],
)
def test_no_fault_loses_or_changes_an_answer(
    faults: str, kinds: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kinds == "kill":  # the known answers, and the starts of agents, take longer than the faults
        monkeypatch.setattr(sys, "executable", CLI[0])
        monkeypatch.setattr(answers, "REQUESTS", answers.REQUESTS[4:])
        monkeypatch.setattr(streams, "REQUESTS", streams.REQUESTS[:1])
    assert main(["--faults", faults, "--seed", "7", "--kinds", kinds, "--clients", "2"]) == 0
    assert "No answer was lost or changed." in capsys.readouterr().out
