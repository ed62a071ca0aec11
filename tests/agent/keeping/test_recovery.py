"""A pipeline that has lost a device is set up again with those that are there, and its answers go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from flowedge.client import Client
from flowedge.client.assembly import release
from flowedge.core.errors import DeviceError
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents, become_pipeline, start_all
from tests.support.waiting import await_that
from tests.support.whole_answers import whole_answer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
ASKED = {"max_new_tokens": 160, "ignore_eos": True, "temperature": 1.0, "seed": 3}
STORY = "Tell me a long story about a hen and a goose."


def check_goes_on(client: Client, lose: Callable[[], None]) -> float:
    """Check that an answer on whose way a device is lost is the same; return its longest pause in seconds."""
    whole = whole_answer(client, STORY, **ASKED)
    answer, lost, pauses = client.generate(STORY, **ASKED), False, [0.0]  # type: ignore[arg-type]
    moved = time.monotonic()
    for _ in answer:
        pauses.append(time.monotonic() - moved)
        if not lost and len(answer.token_ids) >= 40:
            lost = True
            lose()
        moved = time.monotonic()
    assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)
    assert answer.statistics["recoveries"] == 1
    return max(pauses)


def addresses(processes: list[AgentProcess]) -> list[str]:
    return [each.address for each in processes]


@pytest.mark.proof
@pytest.mark.parametrize("spares", [1, 0])
def test_a_spare_or_the_other_stages_take_over(spares: int) -> None:
    with agents(["v1", "v2", "v3"]) as started:
        stages, spare = started[:2], started[2:]
        kept = {"stages": addresses(stages), "spares": addresses(spare)[:spares], "look_s": 0.2}
        with agents(["d0"], settings={"pipeline": {"model": "bundled", **kept}}) as (draft_node,):
            client = Client(draft_node.address)
            client.await_ready(120)
            check_goes_on(client, stages[1].kill)
            left = [stages[0].address, *([spare[0].address] if spares else [])]
            assert list(client.describe().stage_addresses) == left
            if spares:
                draft_node.line("v1: layers 0 to 3 are loaded still")
            # The lost device comes again, and has its place when no answer runs.
            stages[1].start()
            stages[1].await_address()
            await_that(
                lambda: list(client.describe().stage_addresses) == addresses(stages), "v2 is left out", 60.0
            )
            client.close()


@pytest.mark.proof
def test_a_stage_that_is_stopped_hands_over_at_once() -> None:
    with agents(["v1", "v2"], settings={"deadlines": {"drain_s": 60.0}}) as stages:
        kept = {"model": "bundled", "stages": addresses(stages)}
        with agents(["d0"], settings={"pipeline": kept}) as (draft_node,):
            client = Client(draft_node.address)
            client.await_ready(120)

            def stop() -> None:
                stages[1].signal(signal.SIGTERM)
                assert stages[1].wait(30.0) == 0
                stages[1].start()
                stages[1].await_address()

            check_goes_on(client, stop)
            assert stages[1].line("handed back", "answers go on without this device")
            client.close()


@pytest.mark.proof
def test_a_draft_node_that_is_stopped_waits_for_no_answer_that_goes_on_by_itself() -> None:
    with agents(["v1", "v2"]) as stages:
        settings = {
            "pipeline": {"model": "bundled", "stages": addresses(stages)},
            "deadlines": {"drain_s": 600.0},
        }
        with agents(["d0"], settings=settings, port=free_port()) as (draft_node,):
            asked = {**ASKED, "max_new_tokens": 300}
            with Client(draft_node.address) as client:
                client.await_ready(120)
                whole = whole_answer(client, STORY, **asked)
                answer, stopped = client.generate(STORY, **asked), False  # type: ignore[arg-type]
                for _ in answer:
                    if not stopped:
                        stopped = True
                        draft_node.signal(signal.SIGTERM)
                        assert draft_node.wait(60.0) == 0
                        draft_node.start()
                        draft_node.await_address()
                assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)


def lose_stages(started: list[AgentProcess], pipeline: str) -> None:
    """Have a pipeline of two stages lose both, so that it is being set up again in vain."""
    become_pipeline(started, pipeline=pipeline)
    for stage in started[1:]:
        stage.kill()
    await_that(lambda: bool(started[0].describe().not_ready), "it does not set its pipeline up again", 30.0)


@pytest.mark.proof
def test_a_pipeline_that_a_client_asked_for_is_kept_until_it_is_released() -> None:
    with agents(["d0", "v1", "v2"]) as started:
        become_pipeline(started, pipeline="first")
        with Client(started[0].address) as client:
            check_goes_on(client, started[2].kill)
            assert list(client.describe().stage_addresses) == [started[1].address]
        release([started[0].address], "first")  # by the id that its owner knows
        await_that(lambda: not started[1].describe().role, "its stage keeps the role", 30.0)
        assert not started[0].describe().role
        start_all(started[2:])
        lose_stages(started, "second")
        release([started[0].address], "second")
        await_that(lambda: not started[0].describe().not_ready, "it is not given up", 30.0)
        start_all(started[1:])
        lose_stages(started, "third")
        start_all(started[2:])
        become_pipeline([started[0], started[2]], pipeline="fourth")  # takes the place of the lost one
        with Client(started[0].address) as client:
            assert client.generate("Hi", max_new_tokens=3).result().text
            assert list(client.describe().stage_addresses) == [started[2].address]


def test_a_pipeline_that_cannot_be_set_up_again_is_given_up_in_time() -> None:
    with agents(["d0", "v1"], settings={"deadlines": {"recovery_s": 2.0}}) as started:
        become_pipeline(started)
        started[1].kill()
        with Client(started[0].address) as client:
            with pytest.raises(DeviceError, match="being set up"):
                client.generate("Hi", max_new_tokens=100).result()
            await_that(lambda: not started[0].describe().not_ready, "it is not given up", 60.0)
            with pytest.raises(DeviceError, match="it is not a draft node"):
                client.generate("Hi", max_new_tokens=100).result()


@pytest.mark.proof
def test_a_pipeline_that_a_client_asked_for_has_its_stages_again() -> None:
    """With no settings of its own, the draft node knows of the stages by that request alone."""
    with agents(["d0", "v1", "v2"]) as started:
        _, *stages = started
        become_pipeline(started)
        client = Client(started[0].address)
        for lost, left in (stages, reversed(stages)):  # the one that was lost first takes over for the other
            check_goes_on(client, lost.kill)
            assert list(client.describe().stage_addresses) == [left.address]
            lost.start()
            lost.await_address()
            await_that(
                lambda: list(client.describe().stage_addresses) == addresses(stages), "one is left out", 60.0
            )
        client.close()
