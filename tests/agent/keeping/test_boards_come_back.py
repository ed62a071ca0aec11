"""A board that was unplugged: the pipeline of all idle agents takes it in again, and ends no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from flowedge.agent.agent_config import AgentConfig, PipelineSettings
from flowedge.agent.keeping import configured_pipeline
from flowedge.agent.keeping.choice import FIRST_PUT_OFF_S, MOST_PUT_OFF_S, SOON_S, PutOff
from flowedge.agent.keeping.configured_pipeline import LOOKS_APART, ConfiguredPipeline
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.client import Client
from flowedge.core.errors import DeviceError
from flowedge.v1 import agent_pb2 as pb
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents
from tests.support.waiting import await_that


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_board_that_comes_back_is_taken_in_when_no_answer_runs() -> None:
    port = free_port()
    late = AgentProcess("v2", "--no-advertise", port=port)
    with agents(["v1"]) as (stage,):
        settings = {
            "pipeline": {"model": "bundled", "look_s": 0.05},
            "discovery": {"peers": [stage.address, f"127.0.0.1:{port}"], "group": "back"},
        }
        with agents(["d0"], settings=settings) as (draft_node,), Client(draft_node.address) as client:
            client.await_ready(120)
            assert client.describe().stage_addresses == (stage.address,)
            answer = client.generate("Tell me a story.", max_new_tokens=600, ignore_eos=True)
            chunks = iter(answer)
            next(chunks)
            late.start()
            try:
                late.await_address()
                draft_node.line("v2: idle, to be taken into the pipeline when no answer runs")
                assert [*chunks] and answer.finish_reason == "length"
                await_that(lambda: len(client.describe().stage_addresses) == 2, "v2 stays idle")
                assert client.generate("Hi", max_new_tokens=3).result().text
            finally:
                late.stop()
                late.remove()


LOOK_S = 5.0


class _EnoughError(Exception):
    """Ends the keeper."""


@dataclass
class Home:
    """A draft node as its keeper sees it, and the agents that are idle while they are not in its pipeline."""

    plugged: set[str]
    broken: set[str] = field(default_factory=set)
    role: Any = None
    pipelines: list[tuple[str, ...]] = field(default_factory=list)
    sessions: int = 0
    looked_for: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    when_looked_for: Callable[[], None] = lambda: None

    async def are_idle(self, addresses: list[str]) -> bool:
        self.looked_for.extend(addresses)
        self.when_looked_for()
        return True

    async def find(self, wanted: int) -> list[tuple[str, str]]:
        used = set(self.pipelines[-1]) if self.role is not None and self.role.in_use else set()
        return [(f"name of {address}", address) for address in sorted(self.plugged - used)]

    async def lead(self, request: pb.DraftNodeRole, report: ReportProgress, caller: str | None) -> None:
        wrong = self.broken & set(request.stages)
        if wrong:
            raise DeviceError(f"name of {min(wrong)}", "it has too little memory")
        self.pipelines.append(tuple(request.stages))
        self.role = create_autospec(DraftNodeRole, instance=True)
        self.role.configure_mock(
            in_use=True,
            ready=True,
            lost=False,
            left_out=frozenset(),
            origin=request.pipeline,
            pipeline=request.pipeline,
            request=pb.DraftNodeRole(stages=sorted(self.plugged.intersection(request.stages))),
            load=lambda: SimpleNamespace(sessions=self.sessions, waiting=0),
        )

    async def release(self, pipeline: str, reason: str) -> None:
        assert pipeline == self.role.pipeline and not self.sessions
        self.released.append(pipeline)
        self.role = None


def keep(
    home: Home,
    events: dict[int, Any],
    looks: int,
    monkeypatch: pytest.MonkeyPatch,
    stages: tuple[str, ...] = (),
) -> None:
    """Run the keeper for some looks; events: what happens after a look, by its number."""
    now = 0.0
    done = 0

    async def sleep(seconds: float) -> None:
        nonlocal now, done
        now += seconds
        if now < (done + 1) * LOOK_S - 1e-6:
            return
        done += 1
        if done > looks:
            raise _EnoughError
        events.get(done, lambda: None)()

    monkeypatch.setattr(configured_pipeline.asyncio, "sleep", sleep)
    monkeypatch.setattr(configured_pipeline, "time", SimpleNamespace(monotonic=lambda: now))
    config = AgentConfig(pipeline=PipelineSettings(model="bundled", look_s=LOOK_S, stages=stages))
    agent: Any = SimpleNamespace(
        name="d0",
        info=SimpleNamespace(name="d0", id="0"),
        roles=home,
        config=config,
        stands_by=None,
        recovers=False,
    )
    keeper = ConfiguredPipeline(agent, home.lead)
    monkeypatch.setattr(keeper, "_idle_agents", home)
    with pytest.raises(_EnoughError):
        asyncio.run(keeper.run())


def test_a_board_that_comes_and_goes_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home({"a"})
    events: dict[int, Any] = {}
    for round_ in range(1, 5):
        events[2 * round_ * LOOKS_APART - 2] = lambda: home.plugged.add("b")
        events[2 * round_ * LOOKS_APART + 2] = lambda: home.plugged.discard("b")
    keep(home, events, 10 * LOOKS_APART, monkeypatch)
    assert home.pipelines == [("a",)]


def test_no_answer_is_ended_for_a_board(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home({"a"}, sessions=1)

    def end_answers() -> None:
        assert home.pipelines == [("a",)]
        home.sessions = 0

    events = {1: lambda: home.plugged.add("b"), 9 * LOOKS_APART: end_answers}
    keep(home, events, 10 * LOOKS_APART, monkeypatch)
    assert home.pipelines == [("a",), ("a", "b")]


def test_a_board_with_which_no_pipeline_is_set_up_does_not_keep_the_others_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = Home({"a"}, broken={"b"})
    keep(home, {1: lambda: home.plugged.add("b")}, 4 * LOOKS_APART, monkeypatch)
    assert home.pipelines == [("a",), ("a",)]
    assert home.role.in_use


@pytest.mark.parametrize("meanwhile", ["a request", "a release", "a loss"])
def test_a_pipeline_that_changes_while_its_stages_are_looked_for_is_left_alone(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home({"a:1"})

    def change() -> None:
        if meanwhile == "a request":
            home.sessions = 1
        elif meanwhile == "a release":
            home.role = None
        else:
            home.role.ready = False

    home.when_looked_for = change
    keep(home, {}, LOOKS_APART, monkeypatch, stages=("a:1", "b:1"))
    assert home.looked_for == ["b:1"] and not home.released


def test_a_board_is_put_off_for_a_growing_time() -> None:
    put_off, now = PutOff(), 100.0
    idle = [("a", "a:1"), ("b", "b:1")]
    pauses = []
    for _ in range(8):
        put_off.failed("b:1", now)
        pause = next(s for s in range(1, 2000) if len(put_off.left_of(idle, now + s)) == 2)
        assert put_off.left_of(idle, now) == [("a", "a:1")]
        pauses.append(float(pause))
        now += pause
    assert pauses[:3] == [FIRST_PUT_OFF_S, 2 * FIRST_PUT_OFF_S, 4 * FIRST_PUT_OFF_S]
    assert pauses[-1] == MOST_PUT_OFF_S
    put_off.failed("b:1", now + SOON_S + 1)  # after a good time
    assert len(put_off.left_of(idle, now + SOON_S + 1 + FIRST_PUT_OFF_S)) == 2
