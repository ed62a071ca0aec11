"""An agent that keeps a pipeline up by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.agent.agent_config import AgentConfig, PipelineSettings
from flowedge.agent.keeping import configured_pipeline
from flowedge.agent.keeping.choice import (
    FEWER_AFTER_S,
    RecentLosses,
    choose_stages,
    stages_again,
)
from flowedge.agent.keeping.configured_pipeline import ConfiguredPipeline, keep_pipeline
from flowedge.agent.roles.coordinator import ReportProgress
from flowedge.core.errors import BadRequestError, DeviceError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb
from tests.support.loops import in_loop

STAGES = ("10.0.0.3:7070", "10.0.0.4:7070")
IDLE = [("v2", "b:1"), ("v1", "a:1"), ("v3", "c:1")]


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(0, ["a:1", "b:1", "c:1"]), (2, ["a:1", "b:1"]), (3, ["a:1", "b:1", "c:1"])]
)
def test_stages_are_idle_agents_by_name(wanted: int, chosen: list[str]) -> None:
    assert choose_stages(IDLE, wanted, "d0") == chosen


@pytest.mark.parametrize(("idle", "wanted", "needed"), [([], 0, 1), (IDLE, 4, 4)])
def test_too_few_agents_are_waited_for(idle: list[tuple[str, str]], wanted: int, needed: int) -> None:
    with pytest.raises(
        DeviceError, match=f"{needed} idle agents are needed as stages, {len(idle)} are found"
    ):
        choose_stages(idle, wanted, "d0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": ("nowhere",)},
        {"count": -1},
        {"split": (2, 0), "count": 2},
        {"stages": STAGES, "count": 2},
        {"split": (4, 4)},
        {"split": (4, 4), "count": 3},
        {"look_s": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        PipelineSettings(model="bundled", **wrong)


@dataclass
class Device:
    """A device as the keeper sees it: a role, and the requests to take it."""

    role: Any = None
    asked: list[pb.DraftNodeRole] = field(default_factory=list)
    failures: int = 0

    async def lead(self, request: pb.DraftNodeRole, report: ReportProgress, caller: str | None) -> None:
        self.asked.append(request)
        if len(self.asked) <= self.failures:
            raise DeviceError("v1", "it does not answer")
        self.role = SimpleNamespace(in_use=True, ready=False, pipeline=request.pipeline)


class _EnoughError(Exception):
    """Ends the keeper."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Events between two checks of the keeper, which ends after the last event."""
    events: list[Callable[[], None]] = []

    slept = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        if slept < PipelineSettings().look_s - 1e-6:
            return
        slept = 0.0
        if not events:
            raise _EnoughError
        events.pop(0)()

    monkeypatch.setattr(configured_pipeline.asyncio, "sleep", sleep)
    yield events


def keep(device: Device) -> None:
    config = AgentConfig(pipeline=PipelineSettings(model="bundled", stages=STAGES, split=(3, 5)))
    info = SimpleNamespace(name="d0", id="0")
    agent: Any = SimpleNamespace(name=info.name, info=info, roles=device, config=config, stands_by=None)
    keeper = ConfiguredPipeline(agent, device.lead)
    with pytest.raises(_EnoughError):
        asyncio.run(keeper.run())


def test_it_is_assembled_as_configured(turns: list[Callable[[], None]]) -> None:
    device = Device()
    keep(device)
    (request,) = device.asked
    config = PipelineConfig.from_json(request.config)
    assert config == PipelineConfig(drafter="bundled", split=(3, 5))
    assert tuple(request.stages) == STAGES
    assert request.pipeline


def test_it_is_assembled_again_when_it_is_lost_or_given_up(turns: list[Callable[[], None]]) -> None:
    device = Device()

    def lose() -> None:
        device.role.in_use = False

    def give_up() -> None:
        device.role = None

    turns += [lambda: None, lose, lambda: None, give_up]
    keep(device)
    assert len({request.pipeline for request in device.asked}) == 3


def test_a_failure_is_tried_again(turns: list[Callable[[], None]]) -> None:
    device = Device(failures=2)
    turns += [lambda: None] * 4
    keep(device)
    assert len(device.asked) == 3


@in_loop(120.0)
async def test_an_error_that_nobody_foresaw_does_not_end_it() -> None:
    """The keeper under its supervision: it raises anything, and assembles the pipeline when it can."""
    config = AgentConfig(pipeline=PipelineSettings(model="bundled", stages=STAGES, look_s=0.01))
    info = SimpleNamespace(name="d0", id="0")
    device, ready = Device(), asyncio.Event()
    errors = [KeyError("a name"), RecursionError()]

    async def lead(request: pb.DraftNodeRole, report: ReportProgress, caller: str | None) -> None:
        if errors:
            raise errors.pop()
        await device.lead(request, report, caller)
        ready.set()

    agent: Any = SimpleNamespace(name=info.name, info=info, roles=device, config=config, stands_by=None)
    async with keep_pipeline(agent, lead):
        await asyncio.wait_for(ready.wait(), 60)


def test_another_pipeline_is_left_alone(turns: list[Callable[[], None]]) -> None:
    device = Device(role=SimpleNamespace(in_use=True, pipeline="another"))
    turns += [lambda: None] * 2
    keep(device)
    assert not device.asked


@pytest.mark.parametrize(
    ("usable", "waited_s", "divided", "chosen"),
    [
        ("abc", 0.0, False, "abc"),  # the lost device is there again
        ("acxy", 0.0, False, "axc"),  # a spare at once
        ("xy", 0.0, True, None),
        ("xy", FEWER_AFTER_S, False, "xy"),
        ("ac", 0.0, False, None),  # the lost device may come again soon, or a spare
        ("ac", FEWER_AFTER_S, False, "ac"),
        ("ac", FEWER_AFTER_S, True, None),  # the layers are divided by the user
        ("", FEWER_AFTER_S, False, None),
    ],
)
def test_stages_of_a_pipeline_that_has_lost_a_device(
    usable: str, waited_s: float, divided: bool, chosen: str | None
) -> None:
    stages = stages_again("abc", "xy", set(usable), waited_s, divided=divided)
    assert stages == (None if chosen is None else tuple(chosen))


@pytest.mark.parametrize(
    "wrong", [{"spares": STAGES}, {"stages": STAGES, "spares": STAGES[:1]}, {"spares": ("nowhere",)}]
)
def test_spares_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        PipelineSettings(model="bundled", **wrong)


@pytest.mark.parametrize(
    ("usable", "spares", "divided", "chosen"),
    [
        ("abcx", "x", False, "axc"),  # a spare at once
        ("abc", "", False, "ac"),  # fewer at once
        ("abc", "", True, "abc"),  # nothing else is possible
        ("b", "", False, None),  # it might be lost at once: the others may come back first
        ("bc", "x", False, "c"),
    ],
)
def test_a_device_that_may_be_lost_at_once_is_taken_where_the_others_do_not_suffice(
    usable: str, spares: str, divided: bool, chosen: str | None
) -> None:
    stages = stages_again("abc", spares, set(usable), 0.0, divided=divided, doubtful={"b"})
    assert stages == (None if chosen is None else tuple(chosen))


def test_losses_of_a_device_are_counted_for_a_time() -> None:
    losses = RecentLosses(10.0)
    assert [losses.add("a", now) for now in (100.0, 105.0, 109.0, 112.0, 130.0)] == [1, 2, 3, 3, 1]
    assert losses.add("b", 130.0) == 1
    never = RecentLosses(0.0)
    assert [never.add("a", 1.0) for _ in range(5)] == [1] * 5
