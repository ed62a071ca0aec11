"""A standby leads the pipeline of a draft node that is lost, and its answers go on there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flowedge.agent.roles.led_pipeline import LOST_AFTER_S, LedPipeline, Standby, StandbyStep, next_step
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.errors import BadRequestError, DeviceLostError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents
from tests.support.waiting import await_that
from tests.support.whole_answers import whole_answer

slow = pytest.mark.slow
pytestmark = [pytest.mark.timeout(300)]
STORY = "Tell me a long story about a hen and a goose."

LEADS = pb.Device(instance="a", stage_addresses=["v1:1"])
SETS_UP = pb.Device(instance="b", not_ready="its pipeline is being set up")


@pytest.mark.parametrize(
    ("answer", "silent_s", "step"),
    [
        (LEADS, 0.0, StandbyStep.WAIT),
        (SETS_UP, 0.0, StandbyStep.WAIT),
        (pb.Device(instance="a"), 0.0, StandbyStep.FORGET),  # it was released
        (pb.Device(instance="b"), 0.0, StandbyStep.LEAD),  # it was started again, and knows of no pipeline
        (None, LOST_AFTER_S / 2, StandbyStep.WAIT),
        (None, LOST_AFTER_S * 2, StandbyStep.LEAD),
    ],
)
def test_what_a_standby_does_next(answer: pb.Device | None, silent_s: float, step: StandbyStep) -> None:
    assert next_step(answer, "a", silent_s) == step


def test_silence_is_counted_from_the_last_answer() -> None:
    standby = Standby(LedPipeline(pb.DraftNodeRole(standby="d0:1"), "origin", None), "a", heard=100.0)
    later = standby.after(LEADS, 110.0)
    assert later == replace(standby, heard=110.0) or (later is not None and later.heard == 110.0)
    assert later is not None
    assert later.after(None, 110.0 + LOST_AFTER_S / 2) is later
    lost = later.after(None, 110.5 + LOST_AFTER_S)
    assert lost is not None
    assert lost.due
    assert standby.after(pb.Device(instance="a"), 100.0) is None


def test_layers_are_divided_anew_for_another_number_of_stages() -> None:
    config = PipelineConfig(drafter="bundled", split=(2, 4))
    led = LedPipeline(pb.DraftNodeRole(stages=["v1:1", "v2:1"], config=config.to_json()), "origin", None)
    same, fewer = led.with_stages(("v3:1", "v1:1"), "new"), led.with_stages(("v1:1",), "new")
    assert PipelineConfig.from_json(same.config).split == (2, 4)
    assert PipelineConfig.from_json(fewer.config).split == ()
    assert (list(fewer.stages), fewer.pipeline) == (["v1:1"], "new")


def check_goes_on(client: Client, lose: Callable[[], None]) -> None:
    """Check that an answer on whose way the draft node is lost is the same."""
    asked: dict[str, Any] = {"max_new_tokens": 120, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    whole = whole_answer(client, STORY, **asked)
    answer, lost = client.generate(STORY, **asked), False
    for _ in answer:
        if not lost and len(answer.token_ids) >= 40:
            lost = True
            lose()
    assert lost
    assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)


def stands_by(standby: AgentProcess, draft_node: AgentProcess) -> None:
    await_that(
        lambda: standby.describe().stands_by_for == draft_node.address,
        f"{standby.name} does not stand by for {draft_node.name}",
        30.0,
    )


@pytest.mark.proof
@slow
def test_a_standby_leads_the_pipeline_until_it_is_lost_itself() -> None:
    with agents(["d1", "v1", "v2"]) as (standby, *stages):
        pipeline = {
            "model": "bundled",
            "stages": [each.address for each in stages],
            "standby": standby.address,
            "look_s": 0.2,
        }
        with agents(["d0"], port=free_port(), settings={"pipeline": pipeline}) as (draft_node,):
            with Client(draft_node.address) as client:
                client.await_ready(120)
                stands_by(standby, draft_node)
                check_goes_on(client, draft_node.kill)
                assert list(standby.describe().stage_addresses) == pipeline["stages"]
            # It comes again, and stands by in its turn, though its settings have the pipeline.
            draft_node.start()
            draft_node.await_address()
            stands_by(draft_node, standby)
            with Client(draft_node.address) as client:  # which is told who leads
                check_goes_on(client, standby.kill)
            assert list(draft_node.describe().stage_addresses) == pipeline["stages"]


@pytest.mark.proof
@slow
def test_a_stage_may_be_the_standby_and_the_others_take_its_layers() -> None:
    with agents(["d0", "v1", "v2"]) as (draft_node, *stages):
        spec = PipelineSpec(
            draft_node=draft_node.address,
            stages=tuple(each.address for each in stages),
            drafter=("bundled",),
            standby=stages[1].address,
        )
        assemble(spec, lambda *_: None)
        stands_by(stages[1], draft_node)
        with Client(draft_node.address) as client:
            check_goes_on(client, draft_node.kill)
            led = stages[1].describe()
            assert (led.role, list(led.stage_addresses)) == ("draft node", [stages[0].address])


@pytest.mark.proof
@slow
def test_a_pipeline_that_is_released_has_no_standby() -> None:
    with agents(["d0", "d1", "v1"]) as (draft_node, standby, stage):
        spec = PipelineSpec(
            draft_node=draft_node.address,
            stages=(stage.address,),
            drafter=("bundled",),
            standby=standby.address,
        )
        pipeline = assemble(spec, lambda *_: None)
        stands_by(standby, draft_node)
        release([draft_node.address], pipeline)
        await_that(lambda: not standby.describe().stands_by_for, "it stands by still", 30.0)
        # A draft node says why it has no standby: this one leads a pipeline of its own.
        assemble(
            PipelineSpec(draft_node=standby.address, stages=(stage.address,), drafter=("bundled",)),
            lambda *_: None,
        )
        with agents(["v2"]) as (other,):
            assemble(spec.changed(stages=(other.address,)), lambda *_: None)
            assert draft_node.line("the pipeline has no standby", "device d1: it leads pipeline")
            # The two give the same answers, so either can stand in for the other in a client.
            with Client(draft_node.address, alternatives=[standby.address]) as client:
                check_goes_on(client, draft_node.kill)
            nobody = f"127.0.0.1:{free_port()}"
            with Client(nobody, alternatives=[standby.address]) as client:
                assert client.generate("Hi", max_new_tokens=3).result().text
            with Client(nobody) as client, pytest.raises(DeviceLostError):
                client.generate("Hi", max_new_tokens=3).result()


def test_alternatives_are_addresses() -> None:
    with pytest.raises(BadRequestError, match="alternatives is a text"):
        Client("127.0.0.1:1", alternatives="127.0.0.1:2")
    with pytest.raises(BadRequestError, match="nowhere"):
        Client("127.0.0.1:1", alternatives=["nowhere"])
    with pytest.raises(BadRequestError, match="its standby must be another agent"):
        PipelineSpec(draft_node="a:1", stages=("b:1",), standby="a:1")
