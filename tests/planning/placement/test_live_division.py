"""Divisions over devices that have measured a model: their profiles, their choice, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.errors import CapacityError
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.placement.live_division import choose, divide
from flowedge.planning.placement.live_fleet import measure_options
from flowedge.planning.placement.plan import division
from flowedge.planning.profile import shipped
from flowedge.planning.profile.device import DeviceProfile, MeasuredTimes
from flowedge.planning.profile.model import LayerSizes, ModelProfile
from tests.support.processes import AgentProcess, running
from tests.support.smollm2 import make_smollm2

MODEL = shipped.model("llama3.2-1b")
GOAL = Goal(MODEL, context=2048)
LINK = shipped.link("gigabit").model_copy(update={"latency_ms": 0.3})
NAMES = {"a": "attic", "b": "bench", "c": "cellar"}


def measured(layer_ms: float, memory_gib: float = 8.0, model: ModelProfile = MODEL) -> DeviceProfile:
    """A device on which a layer takes so long, whatever its constants say."""
    times = MeasuredTimes(
        **model.model_dump(include=set(LayerSizes.model_fields)),
        vocab=model.vocab,
        dtype=model.dtype,
        quant="none",
        cached_rows=0,
        layer_ms={1: layer_ms, SEGMENT_ROWS: layer_ms, 64: 2 * layer_ms},
        verify_ms={1: 5.0, 64: 6.0},
    )
    return shipped.device("pc-8core").model_copy(update={"memory_gib": memory_gib, "measured": times})


def fleet_of(devices: Mapping[str, DeviceProfile]) -> Fleet:
    return Fleet({"d0": measured(5.0), **devices}, LINK, {})


def test_the_slower_stage_holds_fewer_layers() -> None:
    fleet = fleet_of({"a": measured(4.0), "b": measured(12.0)})
    found = divide(GOAL, fleet, "d0", ["a", "b"])
    assert sum(found.split) == MODEL.layers
    assert found.split[0] > found.split[1]
    assert "with an even division" in found.compared
    best = division(GOAL, fleet, "d0", ["a", "b"])[0]
    assert best.tokens_per_s == max(each.tokens_per_s for each in division(GOAL, fleet, "d0", ["a", "b"]))
    assert "attic " in found.words(NAMES)


def test_about_equal_stages_hold_as_many_layers() -> None:
    found = divide(GOAL, fleet_of({"a": measured(4.0), "b": measured(4.1)}), "d0", ["a", "b"])
    assert (found.split, found.compared) == ((8, 8), "")


def test_what_does_not_fit_evenly_is_divided_by_memory() -> None:
    fleet = fleet_of({"a": measured(4.0, memory_gib=1.2), "b": measured(4.0)})
    found = divide(GOAL, fleet, "d0", ["a", "b"])
    assert found.split[0] < 8
    assert found.compared == "; an even division does not fit"
    require_fit(division(GOAL, fleet, "d0", ["a", "b"])[0].pipeline, GOAL.rows)
    with pytest.raises(CapacityError, match="GiB are missing"):
        divide(GOAL, fleet_of({"a": measured(4.0, 0.6), "b": measured(4.0, 0.6)}), "d0", ["a", "b"])


@pytest.mark.proof
def test_a_device_that_slows_answers_down_is_left_out_with_the_reason() -> None:
    fleet = fleet_of({"a": measured(4.0), "b": measured(60.0), "c": measured(4.0)})
    found = choose(GOAL, fleet, "d0")
    assert sorted(found.stages) == ["a", "c"]
    assert [each.device for each in found.left_out] == ["b"]
    assert "slower with it" in found.words(NAMES)
    assert "left out: bench (" in found.words(NAMES)


@pytest.mark.proof
def test_another_device_drafts_where_that_is_clearly_faster() -> None:
    small = measured(5.0, memory_gib=0.3)
    fleet = Fleet({"d0": small, "a": measured(4.0), "b": measured(4.0)}, LINK, {})
    with pytest.raises(CapacityError):
        choose(GOAL, fleet, "d0")
    assert choose(GOAL, fleet, "d0", ["a", "b"]).draft_node in ("a", "b")
    slow = Fleet({"d0": measured(40.0), "a": measured(4.0), "b": measured(4.0)}, LINK, {})
    assert choose(GOAL, slow, "d0").draft_node == "d0"
    alike = Fleet({"d0": measured(4.0), "a": measured(4.0), "b": measured(4.0)}, LINK, {})
    assert choose(GOAL, alike, "d0", ["a", "b"]).draft_node == "d0", "it is as good as the others"


def test_a_division_holds_for_a_pipeline_that_is_set_up_again() -> None:
    found = divide(GOAL, fleet_of({"a": measured(4.0), "b": measured(12.0)}), "d0", ["a", "b"])
    named = found.model
    assert found.holds_for(f"/models/{named}", 2)
    assert not found.holds_for(f"/models/{named}", 3)
    assert not found.holds_for("/models/another", 2)


def test_the_name_of_a_model_makes_no_difference_to_what_is_measured() -> None:
    other = MODEL.model_copy(update={"title": "another", "source": "elsewhere"})
    assert measure_options(MODEL, "int8") == measure_options(other, "int8")
    assert measure_options(MODEL, "int8") != measure_options(MODEL, "none")


@pytest.mark.proof
def test_an_agent_that_cannot_draft_names_another_one(tmp_path: Path) -> None:
    """Whoever is asked first: the pipeline is led by a device that has room for the LM head."""
    (tmp_path / "model").mkdir()
    model = make_smollm2(tmp_path / "model", "360M", layers=12)
    little = {"memory": {"limit_gib": 0.33, "reserve_gib": 0.05}}
    state = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    small = AgentProcess("lead-d0", "--no-advertise", settings=little, environment=state, fresh=True)
    large = AgentProcess("lead-v1", "--no-advertise", environment=state)
    said, led = list[str](), list[PipelineSpec]()
    with running(small, large):
        spec = PipelineSpec(
            model=str(model),
            drafter="ngram",
            draft_node=small.address,
            stages=(large.address,),
            chooses=True,
            hands_on=True,
        )
        assemble(spec, lambda device, text: said.append(f"{device}: {text}"), on_leader=led.append)
        assert [each.draft_node for each in led] == [large.address]
        assert led[0].stages == (small.address,) and not led[0].hands_on
        with Client(large.address) as client, Client(small.address) as other:
            assert client.generate("Hello", max_new_tokens=8, ignore_eos=True).result().token_ids
            assert other.describe().role != "draft node"
    assert "lead-d0: answers are faster with lead-v1 as the draft node" in said


@pytest.mark.proof
def test_agents_measure_and_divide_a_model_by_their_memory(tmp_path: Path) -> None:
    """A board with little memory takes the layers that it can hold, where half of them would not fit."""
    (tmp_path / "model").mkdir()
    model = make_smollm2(tmp_path / "model", "360M", layers=20)
    little = {"memory": {"limit_gib": 0.75, "reserve_gib": 0.05}}
    state = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    made = [
        AgentProcess("plan-d0", "--no-advertise", environment=state),
        AgentProcess("plan-v1", "--no-advertise", settings=little, environment=state, fresh=True),
        AgentProcess("plan-v2", "--no-advertise", environment=state),
    ]
    said: list[str] = []
    with running(*made):
        stages = tuple(each.address for each in made[1:])
        spec = PipelineSpec(model=str(model), drafter="ngram", draft_node=made[0].address, stages=stages)
        assemble(spec, lambda device, text: said.append(f"{device} {text}"))
        with Client(made[0].address) as client:
            layers = client.describe().stage_layers
            assert client.generate("Hello", max_new_tokens=8, ignore_eos=True).result().token_ids
    assert sum(layers) == 20
    assert 0 < layers[0] < 10
    assert any("an even division does not fit" in each for each in said)
    assert any(each.startswith("plan-d0 links have ") for each in said)
    assert list((tmp_path / "state" / "measured").glob("*.json"))
