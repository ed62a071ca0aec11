"""An agent that keeps a pipeline up by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.agent import configured_pipeline
from flowedge.agent.agent_config import AgentConfig, PipelineSettings
from flowedge.agent.configured_pipeline import ConfiguredPipeline, choose_stages, keep_pipeline
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

    async def lead(self, request: pb.DraftNodeRole, report: ReportProgress) -> None:
        self.asked.append(request)
        if len(self.asked) <= self.failures:
            raise DeviceError("v1", "it does not answer")
        self.role = SimpleNamespace(in_use=True)


class _EnoughError(Exception):
    """Ends the keeper."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Events between two checks of the keeper, which ends after the last event."""
    events: list[Callable[[], None]] = []

    async def sleep(seconds: float) -> None:
        if not events:
            raise _EnoughError
        events.pop(0)()

    monkeypatch.setattr(configured_pipeline.asyncio, "sleep", sleep)
    yield events


def keep(device: Device) -> None:
    config = AgentConfig(pipeline=PipelineSettings(model="bundled", stages=STAGES, split=(3, 5)))
    info = SimpleNamespace(name="d0", id="0")
    agent: Any = SimpleNamespace(name=info.name, info=info, roles=device, config=config)
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

    async def lead(request: pb.DraftNodeRole, report: ReportProgress) -> None:
        if errors:
            raise errors.pop()
        await device.lead(request, report)
        ready.set()

    agent: Any = SimpleNamespace(name=info.name, info=info, roles=device, config=config)
    async with keep_pipeline(agent, lead):
        await asyncio.wait_for(ready.wait(), 60)


def test_another_pipeline_is_left_alone(turns: list[Callable[[], None]]) -> None:
    device = Device(role=SimpleNamespace(in_use=True))
    turns += [lambda: None] * 2
    keep(device)
    assert not device.asked
