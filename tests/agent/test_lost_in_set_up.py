"""A stage that is lost at any step of a set-up: the set-up ends with its name, and the next one works."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import DeviceLostError, FlowEdgeError
from tests.support.breadth import dealt
from tests.support.commands import run_command
from tests.support.processes import CLI, AgentProcess, agents
from tests.support.waiting import await_that

pytestmark = [pytest.mark.timeout(600)]
NEWS_S = 60.0  # without news of the pipeline, after which the call would be given up
LOST_S = {"connect_s": 1.0}

STEPS = {
    "meeting": ("d0", "opening bundled"),
    "planning": ("d0", "computes in"),
    "loading the head": ("d0", "loading the LM head"),
    "loading layers": ("v1", "loading layers"),
    "opening links": ("v1", "connecting to"),
    "v2 is ready": ("v2", "ready"),  # and says nothing more, while v1 may still wait for it
    "v1 is ready": ("v1", "ready"),
}
LATE = "opening links", "v2 is ready", "v1 is ready"  # the pipeline may be whole before the signal comes
CASES = [(step, victim, signal.SIGKILL) for step in STEPS for victim in ("v1", "v2")]
CASES += [("loading layers", "v1", signal.SIGSTOP), ("v2 is ready", "v2", signal.SIGSTOP)]
TESTED = {("loading layers", "v1"), ("planning", "v2"), ("v2 is ready", "v2")}


@pytest.fixture(scope="module")
def devices() -> Iterator[list[AgentProcess]]:
    with agents(["d0", "v1", "v2"], settings={"deadlines": LOST_S}) as made:
        yield made


def spec_of(devices: list[AgentProcess]) -> PipelineSpec:
    draft_node, *stages = (device.address for device in devices)
    return PipelineSpec(draft_node=draft_node, stages=tuple(stages), drafter=("bundled",))


def come_back(device: AgentProcess) -> None:
    if device.running:
        device.signal(signal.SIGCONT)
    else:
        device.kill()
        device.start()
        device.await_address()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("step", "victim", "number"), dealt(CASES, lambda case: case[:2] in TESTED))
def test_a_set_up_ends_with_the_name_of_the_stage_that_is_lost(
    devices: list[AgentProcess], step: str, victim: str, number: signal.Signals
) -> None:
    lost = next(device for device in devices if device.name == victim)
    signalled: list[str] = []

    def lose(device: str, text: str) -> None:
        if not signalled and device == STEPS[step][0] and text.startswith(STEPS[step][1]):
            signalled.append(text)
            lost.signal(number)
            if number is signal.SIGKILL:
                lost.wait()

    found = None
    try:
        assemble(spec_of(devices), lose, timeout_s=NEWS_S)
    except DeviceLostError as error:
        found = error.device
    finally:
        come_back(lost)
    if found is None:  # the pipeline was whole, and d0 sets it up again until it is released
        release([devices[0].address], "")
    assert signalled
    assert found in (lost.name, lost.address) or (found is None and step in LATE)
    await_that(lambda: all(not device.describe().role for device in devices), "a device keeps its role")
    assemble(spec_of(devices), lambda *_: None, timeout_s=NEWS_S)
    for device in devices:
        with contextlib.suppress(FlowEdgeError):  # d0 has its stages give up their roles
            release([device.address], "")


def test_a_set_up_has_a_limit_whatever_news_there_is(devices: list[AgentProcess]) -> None:
    """`flowedge generate --timeout` ends a set-up, too; the error has the last news of it."""
    stage = devices[1]
    stage.signal(signal.SIGSTOP)
    try:
        peers = ",".join(device.address for device in devices)
        command = [*CLI, "generate", "--peers", peers, "--model", "bundled", "--prompt", "Hi"]
        done = run_command([*command, "--timeout", "0.2"])
    finally:
        stage.signal(signal.SIGCONT)
    assert done.returncode == 1
    assert "the pipeline was not set up within 0.2 s; the last news: " in done.stderr
    await_that(lambda: not devices[0].describe().role, "d0 goes on with the set-up")
