"""What a lost pipeline held is given back at once, without a collection of cycles."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.core.errors import DeviceLostError
from tests.support.processes import AgentProcess, agents, become_pipeline
from tests.support.waiting import await_that

pytestmark = [pytest.mark.timeout(600)]
LOSSES = 2
AT_ONCE = {"deadlines": {"recovery_s": 0.0}}  # a lost pipeline is not set up again


def held(agent: AgentProcess) -> tuple[int, ...]:
    """Return the numbers of open descriptors and of threads of a process."""
    return tuple(len(list(Path(f"/proc/{agent.pid}", each).iterdir())) for each in ("fd", "task"))


def lose(started: list[AgentProcess], pipeline: str) -> None:
    """Set a pipeline up, and kill its last stage in the middle of an answer."""
    become_pipeline(started, pipeline=pipeline)
    with (
        Client(started[0].address) as client,
        client.generate("Hi", max_new_tokens=1500, ignore_eos=True) as answer,
    ):
        next(answer)
        started[-1].kill()
        with pytest.raises(DeviceLostError):
            answer.result()
    await_that(lambda: not started[1].describe().role)
    started[-1].start()
    started[-1].await_address()


def test_lost_pipelines_leave_no_descriptor_and_no_thread() -> None:
    without_collection = {"FLOWEDGE_TEST_WITHOUT_GC": "1"}
    with agents(["d0", "v1", "v2"], environment=without_collection, settings=AT_ONCE) as started:
        survivors = started[:2]
        lose(started, "first")
        before = [held(agent) for agent in survivors]
        for number in range(LOSSES):
            lose(started, f"lost{number}")
        for agent, at_first in zip(survivors, before, strict=True):
            # A connection may be open in one count alone; what each loss leaves behind counts LOSSES times.
            await_that(
                lambda agent=agent, at_first=at_first: all(  # type: ignore[misc]
                    now < then + LOSSES for now, then in zip(held(agent), at_first, strict=True)
                ),
                f"{agent.name} had {at_first} descriptors and threads after the first loss",
                seconds=20.0,
            )
